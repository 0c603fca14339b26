"""Writes results of `preflight` as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from bigbird_ja.accelerators import CHIPS, MEGACORE, TRAINABLE, Chip
from bigbird_ja.preflight.costs import link_bytes
from bigbird_ja.process.console import human_bytes, human_count, table
from bigbird_ja.settings.schema import Config


def describe(result: Mapping[str, Any]) -> str:
    """Write one chip's or slice's results as a few lines."""
    chip = chip_of(result)
    where = (
        f"{result['topology']}, {result['devices']} devices" if "devices" in result else chip.name
    )
    head = f"{where}: {result['batch_per_core']} x {result['seq_length']} tokens per {chip.unit}"
    if chip.remark:
        head += f" ({chip.remark})"
    lines = _fitting(result, chip) if result["fits"] else _not_fitting(result, chip)
    if "largest_batch_per_core" in result:
        lines.append(f"largest batch that fits: {result['largest_batch_per_core']} per {chip.unit}")
    if chip.name not in TRAINABLE:
        lines.append(
            "note: TPUEstimator does not run on this chip (tensorflow#90807): --engine pjrt does"
        )
    if result.get("lacking"):
        lines.append(
            f"warning: not the step that trains on this chip, which has attention as a kernel"
            f" and is cheaper ({result['lacking']} for that)"
        )
    return "\n".join([head, *(f"  {line}" for line in lines)])


def chip_of(result: Mapping[str, Any]) -> Chip:
    """Return the chip of one device of a result."""
    name = result["chip"]
    return MEGACORE.get(name, CHIPS[name]) if "devices" in result else CHIPS[name]


def _fitting(result: Mapping[str, Any], chip: Chip) -> list[str]:
    peak, temporary, arguments, traffic = (
        human_bytes(result[key])
        for key in ("hbm_peak_bytes", "temp_bytes", "argument_bytes", "hbm_traffic_bytes")
    )
    total, estimated = result["priced_cycles"], result["estimated_cycles"]
    lines = [
        f"fits: HBM peak {peak} of {human_bytes(chip.hbm_bytes)} (temporaries {temporary},"
        f" arguments {arguments})",
        f"time: {result['step_ms']:.0f} ms = {total / 1e6:.1f} M cycles at"
        f" {chip.clock_hz / 1e6:.0f} MHz (estimated {estimated / 1e6:.1f} M, priced for"
        f" {human_count(result['unestimated_ops'])} ops without an estimate"
        f" {(total - estimated) / 1e6:.1f} M)",
        f"rate: {human_count(result['tokens_per_second_per_core'])} tokens/s per {chip.unit};"
        f" MFU {result['mfu']:.1%} of {chip.peak_flops / 1e12:g} TFLOP/s",
        f"work: {result['model_flops'] / 1e9:,.0f} GFLOP by the model,"
        f" {result['flops'] / 1e9:,.0f} in the program; HBM traffic {traffic}",
    ]
    if result["code_cycles"] is not None:
        lines += _by_code(result, chip)
    elif result["code_not_counted"]:
        lines.append(f"by machine code: not counted: {result['code_not_counted']}")
    if "devices" in result:
        lines.append(
            f"slice: {human_count(result['tokens_per_second'])} tokens/s together; between devices"
            f" {human_bytes(result['collective_bytes'])} in {result['collectives']} operations,"
            f" {result['collective_cycles'] / 1e6:.1f} M of the cycles (links on paper:"
            f" {result['collective_link_ms']:.1f} ms)"
        )
    if result["loops_of_unknown_length"]:
        lines.append("warning: a loop's trip count is unknown, its body is counted once")
    return lines + _tables(result, total)


def _by_code(result: Mapping[str, Any], chip: Chip) -> list[str]:
    """Write the step by machine code."""
    total = result["code_cycles"]
    bound = (f"{name} {cycles / total:.0%}" for name, cycles in result["code_bound_by"].items())
    return [
        f"by machine code: {total / 1e6:.1f} M cycles, {total / chip.clock_hz * 1e3:.0f} ms"
        f" ({result['code_coverage']:.1%} counted), {result['code_waiting_cycles'] / 1e6:.1f} M of"
        " them waiting for copies",
        f"limits of HBM and matrix units: {result['code_roofline_cycles'] / 1e6:.1f} M; bound by:"
        f" {', '.join(bound)}",
    ]


def _tables(result: Mapping[str, Any], total: float) -> list[str]:
    """Write cycles by kind and of the costliest ops; columns by machine code come last."""
    by_code, kinds, ops = result["code_by_kind"] or {}, [], []
    for kind, cycles in (dict.fromkeys(by_code, 0) | result["by_kind"]).items():
        code = [f"{by_code.get(kind, 0) / 1e6:.1f}"] if by_code else []
        kinds.append([kind, f"{cycles / 1e6:.1f}", f"{cycles / total:.0%}", *code])
    for op in result["top_ops"]:
        cells = [op["op"][-70:], op["kind"], op["count"]]
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


def _not_fitting(result: Mapping[str, Any], chip: Chip) -> list[str]:
    used = result["hbm_peak_bytes"]
    lines = [
        f"does not fit: needs {human_bytes(used) if used else 'more'} of"
        f" {human_bytes(chip.hbm_bytes)}; try a smaller batch (--batch_per_core,"
        " training.gradient_accumulation_steps) or training.gradient_checkpointing=true"
    ]
    buffers = [(human_bytes(b["bytes"]), b["op"], b["shape"]) for b in result["largest_buffers"]]
    if buffers:
        lines += ["", *table(buffers, ("largest buffers", "op", "shape")).splitlines()]
    return lines


def limitations(
    config: Config,
    parameters: int,
    results: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
) -> str:
    """Write what the figures leave out."""
    cores = config.tpu.num_cores
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = ["Not in these figures:"]
    alone = [result for result in results if "devices" not in result]
    if alone:
        chip = chip_of(alone[0])
        seconds = link_bytes("all-reduce", 4 * parameters, cores) / chip.link_bytes_per_second
        lines.append(
            f"  - adding up gradients over {cores} cores: about {seconds * 1e3:.0f} ms per step on"
            f" {chip.name}, on paper (4 bytes per parameter, twice round a ring); --topology"
            " compiles it too"
        )
    if len(alone) < len(results):
        lines.append(
            "  - links between devices: their bytes are priced like memory traffic; their time on"
            " paper assumes a ring at the links' rate, with nothing beside it"
        )
    if any(result["attention_implementation"] == "kernel" for result in results):
        lines.append(
            "  - attention's kernels, in priced cycles and the time and rate by these: only cycles"
            " by machine code include them"
        )
    lines += [
        "  - input, saving and logging: they run beside the step, on the host",
        f"  - the compiler's version: this is {packages}; TensorFlow 2.15's TPU runtime carries"
        " an older one",
        "  - hardware: nothing was timed; compare with other estimates made in this way",
    ]
    return "\n".join(lines)
