"""Figures of a compiled train step, such as cycles by kind of op, and their text for users."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bigbird_ja.accelerators.chips import CHIPS, MEGACORE, Chip
from bigbird_ja.preflight.costs import Cost
from bigbird_ja.preflight.results import StepResult
from bigbird_ja.preflight.roofline import CodeCost, StepTime
from bigbird_ja.process.console import format_bytes, format_count, table

# Name of the cycles in which the core waits for copies, in tables of cycles by kind of op.
WAITING = "waiting for copies"
CODE_KEYS = (
    "code_cycles", "code_coverage", "code_roofline_cycles", "code_by_kind", "code_bound_by",
    "code_waiting_cycles",
)  # fmt: skip

# Kind of an op by a scope in the op's name. If the name contains several of these scopes, the one
# that begins last decides. If two begin at the same character, the first in this dict decides.
_SCOPES: dict[str, str] = {
    "dropout": "dropout",
    "softmax": "softmax",
    "scores": "attention scores",
    "context": "attention context",
    "projections": "projections",
    "attention/output": "projections",
    "layer_norm": "layer norm",
    "mlp": "MLP",
    "embedding": "embedding",
    "mlm_head": "MLM head",
    "nsp_head": "NSP head",
    "pooler": "NSP head",
    "optimizer": "optimizer",
    "attention": "attention scores",
}
# Maximum number of ops in `list_top_ops`, and maximum length of an op's name in the text.
_SHOWN = 15
_WIDTH = 70
_COPIES = frozenset({"copy", "transpose", "reshape", "concatenate", "pad", "slice", "broadcast"})


def classify_op(cost: Cost) -> str:
    """Return the kind of an op: "attention scores", "MLP", "copies" and so on, or "other"."""
    op = cost.instruction
    if cost.collective:
        return "between devices"
    if op.opcode in _COPIES or op.name.startswith("copy"):
        return "copies"
    scope = max(_SCOPES, key=op.op_name.rfind)
    return _SCOPES[scope] if scope in op.op_name else "other"


def sum_by_kind(costs: Iterable[Cost]) -> dict[str, int]:
    """Return the sum of cycles for each kind of op, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for cost in costs:
        sums[classify_op(cost)] += cost.cycles
    return _round_sums(sums)


def _round_sums(sums: dict[str, float]) -> dict[str, int]:
    """Round sums and sort them, largest first."""
    return {name: round(sums[name]) for name in sorted(sums, key=lambda name: -sums[name])}


def list_top_ops(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """Return a dict of figures for each of the costliest ops.

    The same op in several layers counts as one.

    Args:
        costs: Costs of a step's instructions. If they are of class `CodeCost`, the dicts are sorted
            by cycles of machine code, and also contain `code_cycles`, `bundle_cycles`, `hbm_cycles`
            and `bound_by`.
    """
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for cost in costs:
        groups[generalize_name(cost), cost.instruction.opcode].append(cost)
    ops = []
    for (name, opcode), alike in groups.items():
        op: dict[str, Any] = {"op": name, "opcode": opcode, "kind": classify_op(alike[0])}
        op["count"] = sum(cost.trips for cost in alike)
        op["cycles"] = round(sum(cost.estimated + cost.priced for cost in alike))
        op["priced"] = round(sum(cost.priced for cost in alike))
        if isinstance(alike[0], CodeCost):
            op["code_cycles"] = round(sum(cost.cycles for cost in alike))
            op["bundle_cycles"] = round(sum(cost.bundle_cycles or 0.0 for cost in alike))
            op["hbm_cycles"] = round(sum(cost.hbm_cycles for cost in alike))
            # Layers may be bound by different resources. Report the costliest layer's resource.
            op["bound_by"] = max(alike, key=lambda cost: cost.cycles).bound_by
        ops.append(op)
    return sorted(ops, key=lambda op: -op.get("code_cycles", op["cycles"]))[:_SHOWN]


def generalize_name(cost: Cost) -> str:
    """Return the op's name without the layer's number and the suffixes that make names unique."""
    op = cost.instruction
    name = op.op_name or f"({op.opcode})"
    name = re.sub(r"layer_\d+", "layer_*", name)
    return re.sub(r"_\d+(?=/|$)", "", name)


def compute_code_figures(costs: Sequence[CodeCost], time: StepTime) -> dict[str, Any]:
    """Compute the figures of a step that depend on its machine code, by the keys in `CODE_KEYS`.

    If the machine code of an op cannot be counted, the op's priced cycles are used instead.
    """
    ran = sum(code.cycles for code in costs)
    hbm = sum(code.hbm_cycles for code in costs) + time.copied
    # `time.waiting` omits copies that no `copy-done` or `slice-done` awaits. But a step takes at
    # least the cycles in which HBM is busy.
    waiting = max(time.waiting, hbm - ran)
    total = ran + waiting
    priced = sum(code.cycles for code in costs if code.bundle_cycles is None)
    kinds: dict[str, float] = defaultdict(float)
    bound: dict[str, float] = defaultdict(float)
    for code in costs:
        kinds[classify_op(code)] += code.cycles
        bound[code.bound_by or "not counted"] += code.cycles
    if waiting:
        kinds[WAITING] = waiting
        bound["HBM"] += waiting
    limits = sum(max(code.hbm_cycles, code.matrix_cycles) for code in costs)
    return {
        "code_cycles": round(total),
        "code_coverage": 1.0 - priced / total if total else 1.0,
        "code_waiting_cycles": round(waiting),
        # Cycles if every op ran at the limit of HBM or the matrix units, and copies at HBM's limit.
        "code_roofline_cycles": round(max(limits, hbm)),
        "code_by_kind": _round_sums(kinds),
        "code_bound_by": _round_sums(bound),
    }


# --- text ----------------------------------------------------------------------------------------


def describe(result: StepResult) -> str:
    """Format the result for a chip or a slice as a few lines of text."""
    has_joined = result.topology and result.chip in MEGACORE
    chip = MEGACORE[result.chip] if has_joined else CHIPS[result.chip]
    where = f"{result.topology}, {result.devices} devices" if result.topology else chip.name
    head = f"{where}: {result.batch_per_core} x {result.seq_length} tokens per {chip.unit}"
    if chip.remark:
        head += f" ({chip.remark})"
    lines = _format_fitting(result, chip) if result.fits else _format_shortage(result, chip)
    if result.largest_batch_per_core is not None:
        lines.append(f"largest batch that fits: {result.largest_batch_per_core} per {chip.unit}")
    if result.compile_seconds is not None:
        lines.append(
            f"before the first step: {result.trace_seconds:.0f} s to trace,"
            f" {result.lowering_seconds:.0f} s to lower, {result.compile_seconds:.0f} s to"
            " compile on this machine"
        )
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _format_fitting(result: StepResult, chip: Chip) -> list[str]:
    peak, temporary, arguments = (
        format_bytes(size or 0)
        for size in (result.hbm_peak_bytes, result.temp_bytes, result.argument_bytes)
    )
    fits = (
        f"fits: HBM peak {peak} of {format_bytes(chip.hbm_bytes)} (temporaries {temporary},"
        f" arguments {arguments})"
    )
    if result.step_ms is None or result.step_ms_range is None:
        return [fits, f"time: unknown, as {result.code_not_counted}"]
    digits = _choose_digits(result.step_ms)
    low, high = (f"{end:.{digits}f}" for end in result.step_ms_range)
    lines = [
        fits,
        f"time: {result.step_ms:.{digits}f} ms ({low}-{high}) by {result.basis}",
        f"rate: {format_count(result.tokens_per_second_per_core or 0)} tokens/s per {chip.unit};"
        f" MFU {result.mfu:.1%} of {chip.peak_flops / 1e12:g} TFLOP/s",
        f"work: {result.model_flops / 1e9:,.0f} GFLOP by the model,"
        f" {(result.flops or 0) / 1e9:,.0f} in the program; HBM traffic"
        f" {format_bytes(result.hbm_traffic_bytes or 0)}",
    ]
    lines += _format_cycles(result)
    if result.topology:
        lines.append(
            f"slice: {format_count(result.tokens_per_second or 0)} tokens/s together; between"
            f" devices {format_bytes(result.collective_bytes or 0)} in {result.collectives}"
            f" operations, {(result.collective_cycles or 0) / 1e6:.1f} M of the cycles (on the"
            f" links: {result.collective_link_ms:.1f} ms)"
        )
    return lines + _format_tables(result)


def _choose_digits(milliseconds: float) -> int:
    """Return the number of decimal places for a time."""
    return 0 if milliseconds >= 10 else 2


def _format_cycles(result: StepResult) -> list[str]:
    """Format the cycles from which the time of a step is computed."""
    estimated, priced = result.estimated_cycles or 0, result.priced_cycles or 0
    lines = [
        f"cycles by the compiler's estimate: {estimated / 1e6:.1f} M, and by price"
        f" {(priced - estimated) / 1e6:.1f} M for the {format_count(result.unestimated_ops or 0)}"
        " ops without an estimate"
    ]
    total, share = result.code_cycles, result.key_tiles_share
    if total is None:
        reason = result.code_not_counted
        return lines + [f"cycles by machine code: unknown, as {reason}"] * bool(reason)
    apart = (
        ""
        if share is None
        else (
            f", with {share:.0%} of full attention's key tiles (the others are of other documents;"
            f" document lengths: {result.document_lengths})"
        )
    )
    bound = (f"{name} {n / total:.0%}" for name, n in (result.code_bound_by or {}).items())
    return [
        *lines,
        f"cycles by machine code: {total / 1e6:.1f} M ({result.code_coverage:.1%} counted),"
        f" {(result.code_waiting_cycles or 0) / 1e6:.1f} M of them waiting for copies{apart}",
        f"limits of HBM and matrix units: {(result.code_roofline_cycles or 0) / 1e6:.1f} M; bound"
        f" by: {', '.join(bound)}",
    ]


def _format_tables(result: StepResult) -> list[str]:
    """Format tables of cycles by kind and of the costliest ops."""
    by_code, total = result.code_by_kind or {}, result.priced_cycles or 1
    kinds, ops = [], []
    for kind, cycles in (dict.fromkeys(by_code, 0) | result.by_kind).items():
        code = [f"{by_code.get(kind, 0) / 1e6:.1f}"] if by_code else []
        kinds.append([kind, f"{cycles / 1e6:.1f}", f"{cycles / total:.0%}", *code])
    for op in result.top_ops:
        cells = [shorten_name(op["op"]), op["kind"], op["count"]]
        cells += [f"{op['cycles'] / 1e6:.2f}", f"{op['cycles'] / total:.1%}"]
        if by_code:
            cells += [f"{op['code_cycles'] / 1e6:.2f}", f"{op['hbm_cycles'] / 1e6:.2f}"]
            cells.append(op["bound_by"] or "not counted")
        ops.append(cells)
    header = ["M cycles", "share", *(["by code"] if by_code else [])]
    more = ["HBM", "bound by"] if by_code else []
    tables = (
        table(kinds, ["kind", *header]),
        table(ops, ["costliest ops", "kind", "times", *header, *more]),
    )
    return [line for text in tables for line in ("", *text.splitlines())]


def shorten_name(name: str) -> str:
    """Replace middle scopes of a long op name by "…"."""
    first, *scopes = name.split("/")
    while len(scopes) > 1 and len("/".join([first, *scopes])) > _WIDTH:
        scopes = scopes[1:]
    kept = "/".join(scopes)
    return name if name == f"{first}/{kept}" or not scopes else f"{first}/…/{kept}"


def _format_shortage(result: StepResult, chip: Chip) -> list[str]:
    used = result.hbm_peak_bytes
    lines = [
        f"does not fit: needs {format_bytes(used) if used else 'more'} of"
        f" {format_bytes(chip.hbm_bytes)}; try a smaller batch (`batch_per_core`,"
        " training.gradient_accumulation_steps) or training.gradient_checkpointing=true"
    ]
    buffers = [(format_bytes(b["bytes"]), b["op"], b["shape"]) for b in result.largest_buffers]
    if buffers:
        lines += ["", *table(buffers, ("largest buffers", "op", "shape")).splitlines()]
    return lines
