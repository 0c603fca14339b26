"""Cost of each instruction of an optimized HLO module: cycles, FLOPs, bytes between devices.

The compiler writes `estimated_cycles` on most fusions but on no relayout, gather, scatter or
concatenation, so a design could hide its cost in those. An instruction without an estimate is
therefore priced at 2 x its padded output bytes / 200 bytes per cycle, the rate that the compiler
itself charges for relayout copies. Collectives are priced in the same way, by their input if that
is larger than their output: a price for memory, not for links. The body of a `while` counts once
per trip. Asynchronous copies and slices run during other ops and are free. So are instructions that
move no data: tuples, bitcasts, parameters, constants, and the `ConcatBitcast` that makes one array
of the adjacent parts of an asynchronous copy (XLA, memory_space_assignment, SlicedCopyAllocation).
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bigbird_ja.preflight.hlo import Instruction, Module

PRICE_BYTES_PER_CYCLE = 200.0
CONTROL = frozenset({"while", "conditional", "call"})

# These start work that runs during other ops. Newer compilers write `custom-call-start` for work on
# the chip's SparseCores (gathers, sums); its operands come with the update.
_STARTS = frozenset({"async-start", "call-start", "custom-call-start"})
_ENDS = frozenset(start.replace("start", end) for start in _STARTS for end in ("update", "done"))
_FREE = _ENDS | {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain",
    "add-dependency", "opt-barrier", "copy-start", "copy-done", "slice-start", "slice-done",
    "partition-id", "replica-id",
}  # fmt: skip
_FREE_WHEN_ASYNC = frozenset({"copy", "slice", "dynamic-slice", "parameter", "bitcast"})
_COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
_DIM_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")


@dataclass(frozen=True)
class Cost:
    """One instruction's share of the step. Cycles and bytes are totals over all its trips."""

    instruction: Instruction
    # Runs in one step.
    trips: int
    # Cycles by the compiler.
    estimated: float
    # Cycles by `price`; 0 if there is an estimate.
    priced: float
    # False inside a loop of unknown trip count.
    trips_known: bool = True
    # Opcode of an instruction that moves data between devices.
    collective: str | None = None
    # Bytes that the collective moves.
    moved_bytes: float = 0.0

    @property
    def cycles(self) -> float:
        """Sum of estimate and price, one of which is zero."""
        return self.estimated + self.priced


def costs(module: Module) -> list[Cost]:
    """Price every instruction that runs, loops multiplied out."""
    return list(_walk(module.entry.instructions, 1, True))


def _walk(instructions: Iterable[Instruction], trips: int, known: bool) -> Iterator[Cost]:
    for op in instructions:
        if op.opcode in CONTROL:
            yield from _walk_control(op, trips, known)
        elif not _is_free(op):
            moving, size = _collective(op), 0.0
            if moving:
                # In an asynchronous call the inner instruction has the shapes.
                size = moving.padded_bytes if op.opcode in _STARTS else _moved_bytes(op)
            elif op.opcode == "custom-call-start":  # has no shape: the work it starts has
                size = sum(one.instructions[-1].padded_bytes for one in op.called)
            estimate = op.estimated_cycles
            priced = 0.0 if estimate is not None else price(size or op.padded_bytes)
            cost = Cost(op, trips, float(estimate or 0) * trips, priced * trips, known)
            if moving:
                cost = replace(cost, collective=moving.opcode, moved_bytes=size * trips)
            yield cost


def _walk_control(op: Instruction, trips: int, known: bool) -> Iterator[Cost]:
    if op.opcode == "while":
        count = trip_count(op)
        yield from _walk(op.computation("body"), trips * (count or 1), known and count is not None)
        return
    branches = [list(_walk(one.instructions, trips, known)) for one in op.called]
    if op.opcode == "conditional":
        # One branch runs: the most expensive, so that the figure is never too small.
        branches = [max(branches, key=lambda branch: sum(c.cycles for c in branch), default=[])]
    for branch in branches:
        yield from branch


def trip_count(loop: Instruction) -> int | None:
    """Return how often a `while` runs its body, None if that is unknown.

    The usual counter is read: the condition compares one element of the loop's tuple with a
    constant; it starts at a constant and grows by one. (XLA's note `known_trip_count` is in no
    program of the TPU compilers.)
    """
    for compare in loop.computation("condition"):
        direction = compare.attribute("direction")
        if compare.opcode != "compare" or direction not in ("LT", "LE"):
            continue
        counter, bound = compare.operands
        index = counter.attribute("index")
        start = _initial(loop.operands[0], int(index)) if index else None
        if start is not None and bound.opcode == "constant" and bound.number is not None:
            return max(bound.number - start + (direction == "LE"), 0)
    return None


def _initial(values: Instruction, index: int) -> int | None:
    """Return the constant that a loop's tuple holds at `index` before the first trip."""
    if values.opcode != "tuple" or index >= len(values.operands):
        return None
    value = values.operands[index]
    while value.opcode in ("copy", "bitcast") and value.operands:
        value = value.operands[0]
    return value.number if value.opcode == "constant" else None


def price(size: float) -> float:
    """Return the cycles for moving `size` bytes, if the compiler gives no estimate."""
    return 2.0 * size / PRICE_BYTES_PER_CYCLE


def _is_free(op: Instruction) -> bool:
    if op.opcode in _FREE or _ends_collective(op):
        return True  # the start has the cost of both
    if op.opcode in _STARTS:
        return bool(op.inside) and all(o.opcode in _FREE_WHEN_ASYNC for o in op.inside)
    # Joins the parts of an asynchronous copy.
    return (
        op.opcode == "custom-call"
        and op.attribute("custom_call_target") == "ConcatBitcast"
        and all(part.opcode == "slice-done" for part in op.operands)
    )


def _ends_collective(op: Instruction) -> bool:
    is_done = op.opcode.startswith(_COLLECTIVES) and op.opcode.endswith("-done")
    return is_done or op.name.startswith("async-collective-done")


def _collective(op: Instruction) -> Instruction | None:
    """Return the instruction that moves data between devices: this one, or one that it calls."""
    # A collective during computations is written as a fusion that starts it, fusions with bodies of
    # this name that compute meanwhile, and one that ends it; each holds the collective again.
    if any(one.name.startswith("async_collective_fusion") for one in op.called):
        return None
    if op.opcode in ("fusion", "call", *_STARTS):
        return next((one for inner in op.inside if (one := _collective(inner))), None)
    return op if op.opcode.startswith(_COLLECTIVES) and not _ends_collective(op) else None


def _moved_bytes(op: Instruction) -> int:
    """Count the bytes of the larger of input and output, padded."""
    given = sum(operand.padded_bytes for operand in op.operands)
    # These output their input again, with the result.
    is_start = op.opcode == "all-gather-start" or op.name.startswith("async-collective-start")
    repeated = given if is_start else 0
    return max(given, op.padded_bytes - repeated)


def link_bytes(opcode: str, size: float, devices: int) -> float:
    """Return the bytes of a collective over each device's links, in a ring."""
    rounds = 2 if opcode.startswith("all-reduce") else 1
    return rounds * (devices - 1) / devices * size


def looped_work(priced: Iterable[Cost]) -> tuple[float, float]:
    """Count FLOPs, and bytes read and written, of loop bodies after their first trip.

    The compiler's own totals count every body once. Padding is counted, as it is moved too.

    Args:
        priced: result of `costs`.
    """
    flops = moved = 0.0
    for cost in priced:
        op, more = cost.instruction, cost.trips - 1.0
        flops += more * instruction_flops(op)
        moved += more * sum(each.padded_bytes for each in (op, *op.operands))
    return flops, moved


def instruction_flops(op: Instruction) -> float:
    """Count FLOPs of the dots and convolutions in one instruction (2 per multiply and add)."""
    if op.opcode in ("dot", "convolution"):
        count = _summed_by_dot if op.opcode == "dot" else _summed_by_convolution
        return 2.0 * op.shapes[0].elements * count(op)
    is_call = op.opcode in ("fusion", "call", "async-start")
    return sum(map(instruction_flops, op.inside)) if is_call else 0.0


def _summed_by_dot(op: Instruction) -> int:
    """Count the products that are summed in each element of the output."""
    left, contracting = op.operands[0], op.attribute("lhs_contracting_dims")
    return math.prod(left.shapes[0].dimensions[int(d)] for d in contracting.split(",") if d)


def _summed_by_convolution(op: Instruction) -> int:
    """Count the products summed in each element of a convolution, as written for matmuls.

    A spatial dimension of the kernel is summed over, unless the window picks one element of it:
    for a batch dimension the input is dilated by the window's size; for a dimension that comes from
    the kernel alone the input is padded by the window's size less one.
    """
    kernel, labels = op.operands[1], _DIM_LABELS.match(op.attribute("dim_labels"))
    assert labels is not None
    window = dict(part.split("=") for part in op.attribute("window").split())
    sizes = zip(labels[2], kernel.shapes[0].dimensions, strict=True)
    return math.prod(
        size
        for label, size in sizes
        if label == "i" or (label.isdigit() and not _picks_one(window, int(label), size))
    )


def _picks_one(window: dict[str, str], dimension: int, size: int) -> bool:
    def at(name: str, default: str) -> str:
        values = window.get(name, "").split("x")
        return values[dimension] if dimension < len(values) and values[dimension] else default

    if int(at("lhs_dilate", "1")) >= size > 1:
        return True
    low, _, high = at("pad", "0_0").partition("_")
    return size > 1 and int(low) + int(high) >= 2 * (size - 1)
