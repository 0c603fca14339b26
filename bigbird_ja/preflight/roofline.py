"""Cycles of each op by machine code, and cycles of a step, which include its waits for copies.

An op's cycles are the maximum of three lower bounds: the number of bundles that run, the time of
its bytes at the bandwidth of HBM, and the time of its products at the peak of the matrix units. The
bundles cannot be counted if the op has no machine code, or if their number depends on data. The
op's priced cycles then replace the number of bundles.

The compiler starts copies between HBM and the core's memory during other ops (`copy-start`,
`slice-start`), and waits for a copy before its use (`copy-done`, `slice-done`). HBM works on the
copies whenever an op does not use HBM. At a `copy-done` or `slice-done`, the core waits for the
remainder of the copy. A program lists its instructions in the order in which they run, so these
waits can be simulated. Of several copies, HBM serves the one that is required first. No other order
gives shorter waits, so the sum of the simulated waits is a lower bound.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bigbird_ja.accelerators.chips import MEGACORE, Chip
from bigbird_ja.preflight.costs import CONTROL, Cost, count_flops, count_trips
from bigbird_ja.preflight.hlo import Computation, Instruction, Module
from bigbird_ja.preflight.machine_code import MATMUL_FLOPS, Code

# An op is called bound by a resource only if it uses at least this fraction of the resource.
_MIN = 0.25
NONE_FULL = "latency"
# libtpu's names of a bundle's slots, for each unit.
_UNITS: Mapping[str, tuple[str, ...]] = {
    "matrix unit": ("MATMUL", "MATPUSH"),
    "vector unit": ("VALU", "XLU", "EUP", "VPOP"),
    "loads": ("VLOAD", "VSTORE"),
}
# Custom-call target of Pallas kernels.
KERNEL = "tpu_custom_call"
# Seconds that each step of a kernel's grid needs in addition to its bundles, to start and await its
# double-buffered copies. Calibrated on public timings: docs/lab/clock.md.
STEP_SECONDS = 0.24e-6
_PICKING = frozenset({"slice", "dynamic-slice", "gather"})
_NAME = re.compile(r"%[\w.\-]+")
_METADATA = re.compile(r", (?:metadata=\{(?:[^{}\"]|\"[^\"]*\")*\}|backend_config=.*$)")


@dataclass(frozen=True)
class CodeCost(Cost):
    """Cost of one instruction by machine code. Cycles are sums over all its runs in one step.

    Attributes:
        bundle_cycles: Cycles of the bundles that run, with a kernel's waits for its own copies;
            None if not counted.
        hbm_cycles: Cycles to read and write the op's bytes in HBM once, at the chip's bandwidth.
        matrix_cycles: Cycles of the op's matrix products at the chip's peak rate.
        bound_by: Resource that the op uses most: the name of a unit, or "HBM". `NONE_FULL` if it
            uses little of each resource; None if its machine code is not counted.
    """

    bundle_cycles: float | None = None
    hbm_cycles: float = 0.0
    matrix_cycles: float = 0.0
    bound_by: str | None = None

    @property
    def cycles(self) -> float:
        """Maximum of `bundle_cycles`, `hbm_cycles` and `matrix_cycles`.

        If the bundles are not counted, the op's priced cycles replace `bundle_cycles`. The number
        of bundles may be below `matrix_cycles`, since a schedule may issue products faster than a
        matrix unit accepts them.
        """
        bundles = super().cycles if self.bundle_cycles is None else self.bundle_cycles
        return max(bundles, self.hbm_cycles, self.matrix_cycles)


def combine_costs(
    module: Module, costs: Iterable[Cost], code: Mapping[str, Code], chip: Chip
) -> list[CodeCost]:
    """Return the cost of each op, with the cycles that are counted in its machine code.

    Args:
        module: Optimized HLO.
        costs: Costs of the module's ops.
        code: Machine code of the same program, by op name.
        chip: Chip for which the program was compiled.
    """
    lookup = _CodeLookup(module, code)
    priced = []
    for cost in costs:
        op = cost.instruction
        hbm = count_hbm_cycles(count_hbm_bytes(op), chip)
        listed = lookup.find(op)
        flops = count_flops(op)
        if listed and not flops:
            # HLO does not contain the products of a kernel, so count them in its machine code.
            cores = 2 if chip is MEGACORE.get(chip.name) else 1
            flops = listed.matmuls * MATMUL_FLOPS[chip.name] * cores
        matrix = flops / chip.peak_flops * chip.clock_hz
        bundles = None if listed is None else listed.cycles * cost.trips
        if listed and is_kernel(cost):
            # Add a kernel's waits for its own copies to the longer of two times: that of its
            # bundles, and that of its matrix products.
            copying = listed.steps * STEP_SECONDS * chip.clock_hz
            bundles = (max(listed.cycles, matrix) + copying) * cost.trips
        limit = None if listed is None else find_bottleneck(listed, hbm, matrix)
        priced.append(
            CodeCost(
                **vars(cost),
                bundle_cycles=bundles,
                hbm_cycles=hbm * cost.trips,
                matrix_cycles=matrix * cost.trips,
                bound_by=limit,
            )
        )
    return priced


def is_kernel(cost: Cost) -> bool:
    """Return whether a cost is the cost of a Pallas kernel."""
    return cost.instruction.get_attribute("custom_call_target") == KERNEL


def sum_inputs(costs: Iterable[CodeCost]) -> dict[str, float]:
    """Return the cycles that determine a step's time, without its waits for copies.

    Returns:
        Cycles of kernels by machine code (`kernels`), and of the other ops by machine code (`code`)
        and by the compiler's estimate (`estimate`). In seconds, they are the arguments of
        `measured.predict_device_seconds`.
    """
    sums = {"kernels": 0.0, "code": 0.0, "estimate": 0.0}
    for one in costs:
        if is_kernel(one):
            sums["kernels"] += one.cycles
        else:
            sums["code"] += one.cycles
            sums["estimate"] += one.estimated + one.priced
    return sums


def find_uncounted(costs: Iterable[CodeCost]) -> str | None:
    """Return a text about a kernel whose cycles cannot be counted, or None.

    A kernel has no useful estimate or price, so its cycles are known only from its machine code.
    """
    for code in costs:
        if code.bundle_cycles is None and is_kernel(code):
            name = code.instruction.name
            return f"{name}, a kernel, has loops of unknown trip count or no machine code"
    return None


def find_bottleneck(code: Code, hbm: float, matrix: float) -> str:
    """Return the resource that an op uses most, or `NONE_FULL` if it uses little of each one.

    Args:
        code: Machine code of the op.
        hbm: Cycles in which HBM is busy.
        matrix: Cycles of the op's products at the chip's peak.
    """
    cycles = max(code.cycles, hbm, matrix, 1.0)
    # `code.slots` are fractions of the time in which bundles run. Multiplied by `running`, they are
    # fractions of the op's whole time.
    running = code.cycles / cycles
    full = {
        unit: running * max(code.slots.get(slot, 0.0) for slot in slots)
        for unit, slots in _UNITS.items()
    }
    full["matrix unit"] = max(full["matrix unit"], matrix / cycles)
    full["HBM"] = hbm / cycles
    resource, share = max(full.items(), key=lambda item: item[1])
    return resource if share >= _MIN else NONE_FULL


def count_hbm_cycles(size: float, chip: Chip) -> float:
    """Return the cycles in which HBM transfers `size` bytes at the chip's bandwidth."""
    return size / chip.hbm_bytes_per_second * chip.clock_hz


def count_hbm_bytes(op: Instruction) -> int:
    """Count the padded bytes that an instruction reads from HBM and writes to it, each array once.

    If a fusion reads only slices or rows of an operand, only these count. If a fusion updates its
    output in place, only the update counts.
    """
    total = sum(_read_bytes(op.inside, place, one) for place, one in enumerate(op.operands))
    written = _count_bytes_in_hbm(op)
    updates = [o for o in op.inside if _is_update(o) and o.text.startswith("ROOT")]
    if written and updates and updates[0].operands[1].opcode:
        written = min(written, updates[0].operands[1].padded_bytes)
    return total + written


def _count_bytes_in_hbm(op: Instruction) -> int:
    return sum(shape.padded_bytes for shape in op.shapes if shape.in_hbm)


def _is_update(op: Instruction) -> bool:
    return op.opcode == "dynamic-update-slice"


def _read_bytes(inner: list[Instruction], place: int, operand: Instruction) -> int:
    """Count the bytes that a fusion reads from HBM for one of its operands.

    Args:
        inner: Instructions in the fusion.
        place: Index of the operand.
        operand: The operand.
    """
    whole = _count_bytes_in_hbm(operand)
    found = (op for op in inner if op.opcode == "parameter" and op.number == place)
    parameter = next(found, None)
    users = [op for op in inner if parameter in op.operands]
    if not whole or not users or any(op.operands[0] is not parameter for op in users):
        return whole
    if all(op.opcode in _PICKING for op in users):
        return min(whole, sum(op.padded_bytes for op in users))
    return 0 if all(_is_update(op) for op in users) else whole


class _CodeLookup:
    """Lookup of an instruction's machine code.

    If several instructions are identical, libtpu lists the machine code of only one of them. So if
    no code is listed for an instruction's name, the code of an identical instruction is used.
    """

    def __init__(self, module: Module, code: Mapping[str, Code]) -> None:
        self._code, self._bodies = code, dict[Computation, str]()
        every = (op for one in module.computations.values() for op in one.instructions)
        self._by_text = {self._normalize(op): code[op.name] for op in every if op.name in code}

    def find(self, op: Instruction) -> Code | None:
        code = self._code.get(op.name) or self._by_text.get(self._normalize(op))
        return code if code and code.is_counted else None

    def _normalize(self, op: Instruction) -> str:
        """Return a text that is the same for instructions that differ only in names or metadata."""
        operands = [operand.type_text for operand in op.operands if operand.opcode]
        return "\n".join(
            [_replace_names(op.text), *operands, *map(self._normalize_body, op.called)]
        )

    def _normalize_body(self, computation: Computation) -> str:
        if computation not in self._bodies:
            ops = computation.instructions
            called = [self._normalize_body(inner) for op in ops for inner in op.called]
            text = _replace_names("\n".join(op.text for op in ops))
            self._bodies[computation] = text + "".join(called)
        return self._bodies[computation]


def _replace_names(text: str) -> str:
    """Remove metadata and backend configs from HLO text, and replace each name by a number.

    Names are numbered in order of appearance.
    """
    text = "\n".join(_METADATA.sub("", _METADATA.sub("", line)) for line in text.splitlines())
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), text)


@dataclass
class StepTime:
    """Cycles of one run of a computation.

    Attributes:
        cycles: Cycles of the ops, without waits for copies.
        hbm: Cycles in which HBM is busy.
        waiting: Cycles in which the core waits for copies.
        copied: Part of `hbm` for copies that run during other ops.
    """

    cycles: float = 0.0
    hbm: float = 0.0
    waiting: float = 0.0
    copied: float = 0.0

    def add(self, other: StepTime) -> None:
        """Add the cycles of another run to the cycles of this run."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def sum_step_time(module: Module, costs: Iterable[CodeCost], chip: Chip) -> StepTime:
    """Compute the time of a step in cycles: the sum of its ops, and its simulated waits for copies.

    Args:
        module: Optimized HLO, in the order in which it runs.
        costs: Costs of the module's ops.
        chip: Chip for which the module was compiled.
    """
    by_op = {code.instruction: code for code in costs}
    return _run(module.entry.instructions, by_op, chip)


def _run(
    instructions: Sequence[Instruction], costs: Mapping[Instruction, CodeCost], chip: Chip
) -> StepTime:
    done_at = {
        op.operands[0]: place
        for place, op in enumerate(instructions)
        if op.opcode in ("copy-done", "slice-done")
    }
    total = StepTime()
    # Heap of the unfinished copies: position of the instruction that waits for the copy, and HBM
    # cycles that the copy still needs.
    copies: list[tuple[int, float]] = []
    for place, op in enumerate(instructions):
        if op.opcode in ("copy-start", "slice-start"):
            busy = count_hbm_cycles(_count_copied_bytes(op), chip)
            heapq.heappush(copies, (done_at.get(op, len(instructions)), busy))
            total.add(StepTime(hbm=busy, copied=busy))
        elif op.opcode in ("copy-done", "slice-done"):
            while copies and copies[0][0] <= place:
                total.waiting += heapq.heappop(copies)[1]
        else:
            one = _time_op(op, costs, chip)
            _serve(copies, max(one.cycles + one.waiting - one.hbm, 0.0))
            total.add(one)
    return total


def _time_op(op: Instruction, costs: Mapping[Instruction, CodeCost], chip: Chip) -> StepTime:
    """Return the cycles of one run of an op. For a loop, they include all its trips."""
    if op.opcode in CONTROL:
        is_loop = op.opcode == "while"
        trips = (is_loop and count_trips(op)) or 1
        bodies = [op.list_called("body")] if is_loop else [one.instructions for one in op.called]
        # As in `costs`, the most expensive branch of a conditional is assumed to run.
        runs = [_run(body, costs, chip) for body in bodies]
        dearest = max(runs, key=lambda run: run.cycles, default=StepTime())
        return StepTime(*(trips * part for part in vars(dearest).values()))
    code = costs.get(op)
    if code is None:
        return StepTime()
    return StepTime(code.cycles / code.trips, code.hbm_cycles / code.trips)


def _serve(copies: list[tuple[int, float]], cycles: float) -> None:
    """Spend `cycles` of HBM on the unfinished copies, in the order in which they are required."""
    while cycles > 0 and copies:
        needed, left = heapq.heappop(copies)
        if left > cycles:
            heapq.heappush(copies, (needed, left - cycles))
        cycles -= left


def _count_copied_bytes(start: Instruction) -> int:
    """Count the bytes that a copy reads from HBM and writes to it."""
    # `copy-start` outputs the tuple (to, from, context), and `slice-start` outputs ((from), to,
    # context). A slice moves only the bytes of `to`.
    to, source = start.shapes[:2] if start.opcode == "copy-start" else start.shapes[1::-1]
    return to.padded_bytes * (to.in_hbm + source.in_hbm)
