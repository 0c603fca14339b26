"""Cycles by machine code: of each op, with its limit, and of a step, with its waits for copies.

The roofline of an op has two limits: the cycles in which its bytes go through HBM at the chip's
bandwidth, and those in which its products go through the matrix units at the chip's peak. Ops whose
bundles cannot be counted (they have none, or their number depends on data) count with their priced
cycles.

The compiler starts copies between HBM and the core's memory during other ops (`copy-start`,
`slice-start`) and waits for them at their use (`copy-done`, `slice-done`). HBM serves them in the
time that the ops between leave to it; for the rest, the core waits at the `done`. A program is
written in the order in which it runs, so that these waits can be added up. The copy that is needed
first is served first: no other order waits for less, so the sum is a lower bound.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bigbird_ja.accelerators.chips import MEGACORE, Chip
from bigbird_ja.preflight.costs import CONTROL, Cost, instruction_flops, trip_count
from bigbird_ja.preflight.hlo import Computation, Instruction, Module
from bigbird_ja.preflight.machine_code import MATMUL_FLOPS, Code

# An op is not bound by a resource that is less full than this.
_MIN = 0.25
NONE_FULL = "latency"
# libtpu's names of a bundle's slots, for each unit.
_UNITS: Mapping[str, tuple[str, ...]] = {
    "matrix unit": ("MATMUL", "MATPUSH"),
    "vector unit": ("VALU", "XLU", "EUP", "VPOP"),
    "loads": ("VLOAD", "VSTORE"),
}
# Target of a kernel's custom call.
KERNEL = "tpu_custom_call"
# Seconds of each step of a kernel's grid in addition to its bundles: it starts its copies, which
# are double buffered, and waits for them. Calibrated by public timings: docs/lab/clock.md.
STEP_SECONDS = 0.24e-6
_PICKING = frozenset({"slice", "dynamic-slice", "gather"})
_NAME = re.compile(r"%[\w.\-]+")
_METADATA = re.compile(r", (?:metadata=\{(?:[^{}\"]|\"[^\"]*\")*\}|backend_config=.*$)")


@dataclass(frozen=True)
class CodeCost(Cost):
    """One instruction's share of the step by machine code, in cycles over all its trips."""

    # One for each bundle, and the waits of a kernel's grid; None if not counted.
    bundle_cycles: float | None = None
    # For the bytes in HBM, read and written once, at the chip's bandwidth.
    hbm_cycles: float = 0.0
    # For the products, at the chip's peak.
    matrix_cycles: float = 0.0
    # A key of `_UNITS`, "HBM" or `NONE_FULL`; None if not counted.
    bound_by: str | None = None

    @property
    def cycles(self) -> float:
        """Cycles of the op: the highest of three lower bounds.

        The bounds are the bundles that run, the bytes in HBM at its bandwidth, and the products at
        the chip's peak, since a schedule may issue products faster than a matrix unit accepts
        them. Priced cycles replace unknown bundles.
        """
        bundles = super().cycles if self.bundle_cycles is None else self.bundle_cycles
        return max(bundles, self.hbm_cycles, self.matrix_cycles)


def code_costs(
    module: Module, costs: Iterable[Cost], code: Mapping[str, Code], chip: Chip
) -> list[CodeCost]:
    """Combine every cost with its machine code.

    Args:
        module: optimized HLO.
        costs: costs of the module's ops.
        code: machine code of the same program, by op name.
        chip: chip for which the program was compiled.
    """
    lookup = _CodeLookup(module, code)
    priced = []
    for cost in costs:
        op = cost.instruction
        hbm = hbm_cycles(hbm_bytes(op), chip)
        listed = lookup.find(op)
        flops = instruction_flops(op)
        if listed and not flops:  # a kernel: the module does not state its products
            cores = 2 if chip is MEGACORE.get(chip.name) else 1
            flops = listed.matmuls * MATMUL_FLOPS[chip.name] * cores
        matrix = flops / chip.peak_flops * chip.clock_hz
        bundles = None if listed is None else listed.cycles * cost.trips
        if listed and is_kernel(cost):
            # The larger of bundles and products, see `CodeCost.cycles`; then the waits for copies.
            copying = listed.steps * STEP_SECONDS * chip.clock_hz
            bundles = (max(listed.cycles, matrix) + copying) * cost.trips
        limit = None if listed is None else bound_by(listed, hbm, matrix)
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
    """Return whether an op is a kernel."""
    return cost.instruction.attribute("custom_call_target") == KERNEL


def inputs_of_time(costs: Iterable[CodeCost]) -> dict[str, float]:
    """Return the cycles that determine a step's time, without its waits for copies.

    Returns:
        `kernels` by machine code, and the other ops by machine code (`code`) and by the compiler's
        estimate (`estimate`): the arguments of `measured.device_seconds`.
    """
    sums = {"kernels": 0.0, "code": 0.0, "estimate": 0.0}
    for one in costs:
        if is_kernel(one):
            sums["kernels"] += one.cycles
        else:
            sums["code"] += one.cycles
            sums["estimate"] += one.estimated + one.priced
    return sums


def not_counted(costs: Iterable[CodeCost]) -> str | None:
    """Return the kernel whose cycles cannot be counted: only its bundles could price it."""
    for code in costs:
        if code.bundle_cycles is None and is_kernel(code):
            name = code.instruction.name
            return f"{name}, a kernel, has loops of unknown trip count or no machine code"
    return None


def bound_by(code: Code, hbm: float, matrix: float) -> str:
    """Return the fullest resource while an op runs, or `NONE_FULL`.

    Args:
        code: machine code of the op.
        hbm: cycles in which HBM is busy.
        matrix: cycles of the op's products at the chip's peak.
    """
    cycles = max(code.cycles, hbm, matrix, 1.0)
    running = code.cycles / cycles  # fraction of the time in which bundles run
    full = {
        unit: running * max(code.slots.get(slot, 0.0) for slot in slots)
        for unit, slots in _UNITS.items()
    }
    full["matrix unit"] = max(full["matrix unit"], matrix / cycles)
    full["HBM"] = hbm / cycles
    resource, share = max(full.items(), key=lambda item: item[1])
    return resource if share >= _MIN else NONE_FULL


def hbm_cycles(size: float, chip: Chip) -> float:
    """Return the cycles in which `size` bytes go through HBM at the chip's bandwidth."""
    return size / chip.hbm_bytes_per_second * chip.clock_hz


def hbm_bytes(op: Instruction) -> int:
    """Count the bytes that an instruction reads from HBM and writes there, each array once, padded.

    If a fusion takes only slices or rows of an operand, those count; if it updates an output in
    place, the update.
    """
    total = sum(_read_bytes(op.inside, place, one) for place, one in enumerate(op.operands))
    written = _bytes_in_hbm(op)
    updates = [o for o in op.inside if _is_update(o) and o.text.startswith("ROOT")]
    if written and updates and updates[0].operands[1].opcode:
        written = min(written, updates[0].operands[1].padded_bytes)
    return total + written


def _bytes_in_hbm(op: Instruction) -> int:
    return sum(shape.padded_bytes for shape in op.shapes if shape.in_hbm)


def _is_update(op: Instruction) -> bool:
    return op.opcode == "dynamic-update-slice"


def _read_bytes(inner: list[Instruction], place: int, operand: Instruction) -> int:
    """Count the bytes that a fusion with the instructions `inner` reads of one operand."""
    whole = _bytes_in_hbm(operand)
    found = (op for op in inner if op.opcode == "parameter" and op.number == place)
    parameter = next(found, None)
    users = [op for op in inner if parameter in op.operands]
    if not whole or not users or any(op.operands[0] is not parameter for op in users):
        return whole
    if all(op.opcode in _PICKING for op in users):
        return min(whole, sum(op.padded_bytes for op in users))
    return 0 if all(_is_update(op) for op in users) else whole


class _CodeLookup:
    """Machine code of an instruction, by its name or by that of an identical one."""

    def __init__(self, module: Module, code: Mapping[str, Code]) -> None:
        self._code, self._bodies = code, dict[Computation, str]()
        every = (op for one in module.computations.values() for op in one.instructions)
        self._by_text = {self._text(op): code[op.name] for op in every if op.name in code}

    def find(self, op: Instruction) -> Code | None:
        code = self._code.get(op.name) or self._by_text.get(self._text(op))
        return code if code and code.is_counted else None

    def _text(self, op: Instruction) -> str:
        """Return a text that is equal for instructions that differ in names and origin only."""
        operands = [operand.type_text for operand in op.operands if operand.opcode]
        return "\n".join([_without_names(op.text), *operands, *map(self._body, op.called)])

    def _body(self, computation: Computation) -> str:
        if computation not in self._bodies:
            ops = computation.instructions
            called = [self._body(inner) for op in ops for inner in op.called]
            text = _without_names("\n".join(op.text for op in ops))
            self._bodies[computation] = text + "".join(called)
        return self._bodies[computation]


def _without_names(text: str) -> str:
    """Replace names by numbers in the order of their appearance, and drop origins."""
    text = "\n".join(_METADATA.sub("", _METADATA.sub("", line)) for line in text.splitlines())
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), text)


@dataclass
class StepTime:
    """Cycles of one run of a computation."""

    # Cycles without waiting.
    cycles: float = 0.0
    # Cycles with HBM busy.
    hbm: float = 0.0
    # Cycles of waiting for copies.
    waiting: float = 0.0
    # The part of `hbm` for copies during other ops.
    copied: float = 0.0

    def add(self, other: StepTime) -> None:
        """Add another run."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def step_time(module: Module, costs: Iterable[CodeCost], chip: Chip) -> StepTime:
    """Add up a step and its waits.

    Args:
        module: scheduled module.
        costs: costs of its ops.
        chip: chip for which it was compiled.
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
    # Heap of the copies under way: the position at which each is needed, its remaining HBM cycles.
    copies: list[tuple[int, float]] = []
    for place, op in enumerate(instructions):
        if op.opcode in ("copy-start", "slice-start"):
            busy = hbm_cycles(_copied_bytes(op), chip)
            heapq.heappush(copies, (done_at.get(op, len(instructions)), busy))
            total.add(StepTime(hbm=busy, copied=busy))
        elif op.opcode in ("copy-done", "slice-done"):
            while copies and copies[0][0] <= place:
                total.waiting += heapq.heappop(copies)[1]
        else:
            one = _one(op, costs, chip)
            _serve(copies, max(one.cycles + one.waiting - one.hbm, 0.0))
            total.add(one)
    return total


def _one(op: Instruction, costs: Mapping[Instruction, CodeCost], chip: Chip) -> StepTime:
    """Count one op, all trips of a loop together."""
    if op.opcode in CONTROL:
        is_loop = op.opcode == "while"
        trips = (is_loop and trip_count(op)) or 1
        bodies = [op.computation("body")] if is_loop else [one.instructions for one in op.called]
        # Of a conditional the most expensive branch runs; the others have no costs.
        runs = [_run(body, costs, chip) for body in bodies]
        dearest = max(runs, key=lambda run: run.cycles, default=StepTime())
        return StepTime(*(trips * part for part in vars(dearest).values()))
    code = costs.get(op)
    if code is None:
        return StepTime()
    return StepTime(code.cycles / code.trips, code.hbm_cycles / code.trips)


def _serve(copies: list[tuple[int, float]], cycles: float) -> None:
    """Spend `cycles` of HBM on the copies."""
    while cycles > 0 and copies:
        needed, left = heapq.heappop(copies)
        if left > cycles:
            heapq.heappush(copies, (needed, left - cycles))
        cycles -= left


def _copied_bytes(start: Instruction) -> int:
    """Count the bytes that a copy reads from HBM and writes there."""
    # (to, from, context) of a copy; ((from), to, context) of a slice, which moves its output.
    to, source = start.shapes[:2] if start.opcode == "copy-start" else start.shapes[1::-1]
    return to.padded_bytes * (to.in_hbm + source.in_hbm)
