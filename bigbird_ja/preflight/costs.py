"""Cost of each instruction of an optimized HLO module: cycles, FLOPs, bytes between devices.

The compiler writes `estimated_cycles` on most fusions, but not on relayouts, gathers, scatters and
concatenations. An instruction without an estimate is priced at 2 x its padded output bytes / 200
bytes per cycle, the compiler's own rate for relayout copies. A collective is priced by the larger
of its input and output. The price includes its memory traffic, but not its traffic on the links
between chips. The body of a `while` counts once per trip.

Asynchronous copies and slices run during other ops, so they are free. Instructions that move no
data are free, too: tuples, bitcasts, parameters, constants, and the `ConcatBitcast` that joins the
adjacent parts of an asynchronous copy (`SlicedCopyAllocation` in XLA's memory_space_assignment).
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bigbird_ja.preflight.hlo import Instruction, Module

PRICE_BYTES_PER_CYCLE = 200.0
CONTROL = frozenset({"while", "conditional", "call"})

# Instructions that start asynchronous work. Newer compilers start work on the chip's SparseCores
# (gathers, sums) with `custom-call-start`. Its operands are listed at the matching
# `custom-call-update`.
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
    """Cost of one instruction. Cycles and bytes are sums over all its runs in one step.

    Attributes:
        instruction: The instruction.
        trips: Number of times that the instruction runs in one step.
        estimated: Cycles by the compiler's estimate.
        priced: Cycles by `price`; 0 if there is an estimate.
        trips_known: Whether every enclosing loop's trip count is known.
        collective: Opcode of the collective that the instruction is or contains, or None.
        moved_bytes: Bytes that the collective moves.
    """

    instruction: Instruction
    trips: int
    estimated: float
    priced: float
    trips_known: bool = True
    collective: str | None = None
    moved_bytes: float = 0.0

    @property
    def cycles(self) -> float:
        """Cycles by the compiler's estimate, or by `price` if there is no estimate."""
        return self.estimated + self.priced


def price_module(module: Module) -> list[Cost]:
    """Return the cost of each instruction of a program, except for free instructions."""
    return list(_walk(module.entry.instructions, 1, True))


def _walk(instructions: Iterable[Instruction], trips: int, known: bool) -> Iterator[Cost]:
    for op in instructions:
        if op.opcode in CONTROL:
            yield from _walk_control(op, trips, known)
        elif not _is_free(op):
            moving, size = _find_collective(op), 0.0
            if moving:
                # Read the size of an asynchronous call's collective from the inner instruction.
                size = moving.padded_bytes if op.opcode in _STARTS else _count_moved_bytes(op)
            elif op.opcode == "custom-call-start":
                # `custom-call-start` has no shape, so read the output of the computation that it
                # starts.
                size = sum(one.instructions[-1].padded_bytes for one in op.called)
            estimate = op.estimated_cycles
            priced = 0.0 if estimate is not None else price(size or op.padded_bytes)
            cost = Cost(op, trips, float(estimate or 0) * trips, priced * trips, known)
            if moving:
                cost = replace(cost, collective=moving.opcode, moved_bytes=size * trips)
            yield cost


def _walk_control(op: Instruction, trips: int, known: bool) -> Iterator[Cost]:
    if op.opcode == "while":
        count = count_trips(op)
        yield from _walk(op.list_called("body"), trips * (count or 1), known and count is not None)
        return
    branches = [list(_walk(one.instructions, trips, known)) for one in op.called]
    if op.opcode == "conditional":
        # It is unknown which branch runs. As an upper bound, assume the most expensive branch.
        branches = [max(branches, key=lambda branch: sum(c.cycles for c in branch), default=[])]
    for branch in branches:
        yield from branch


def count_trips(loop: Instruction) -> int | None:
    """Return how often a `while` runs its body, or None if that is unknown.

    The number is known if the loop's counter starts at a constant, grows by one, and is compared
    with a constant. (Programs of the TPU compiler do not contain XLA's `known_trip_count`.)
    """
    for compare in loop.list_called("condition"):
        direction = compare.get_attribute("direction")
        if compare.opcode != "compare" or direction not in ("LT", "LE"):
            continue
        counter, bound = compare.operands
        index = counter.get_attribute("index")
        start = _find_initial(loop.operands[0], int(index)) if index else None
        if start is not None and bound.opcode == "constant" and bound.number is not None:
            return max(bound.number - start + (direction == "LE"), 0)
    return None


def _find_initial(values: Instruction, index: int) -> int | None:
    """Return the value at `index` in a loop's initial tuple, or None if it is not a constant."""
    if values.opcode != "tuple" or index >= len(values.operands):
        return None
    value = values.operands[index]
    while value.opcode in ("copy", "bitcast") and value.operands:
        value = value.operands[0]
    return value.number if value.opcode == "constant" else None


def price(size: float) -> float:
    """Return the assumed cycles for moving `size` bytes in an op without an estimate."""
    return 2.0 * size / PRICE_BYTES_PER_CYCLE


def _is_free(op: Instruction) -> bool:
    # The end of an asynchronous collective is free, since the cost is counted at its start.
    if op.opcode in _FREE or _ends_collective(op):
        return True
    if op.opcode in _STARTS:
        return bool(op.inside) and all(o.opcode in _FREE_WHEN_ASYNC for o in op.inside)
    return (
        op.opcode == "custom-call"
        and op.get_attribute("custom_call_target") == "ConcatBitcast"
        and all(part.opcode == "slice-done" for part in op.operands)
    )


def _ends_collective(op: Instruction) -> bool:
    is_done = op.opcode.startswith(_COLLECTIVES) and op.opcode.endswith("-done")
    return is_done or op.name.startswith("async-collective-done")


def _find_collective(op: Instruction) -> Instruction | None:
    """Return the collective whose cost is counted at `op`, or None.

    The collective is `op` itself, or an instruction in a computation that `op` calls. A collective
    that spans several ops is counted at its start.
    """
    # If the compiler overlaps a collective with computations, three kinds of fusions contain the
    # collective: one that starts it, some that compute meanwhile (`async_collective_fusion`), and
    # one that ends it. Count the collective only in the fusion that starts it.
    if any(one.name.startswith("async_collective_fusion") for one in op.called):
        return None
    if op.opcode in ("fusion", "call", *_STARTS):
        return next((one for inner in op.inside if (one := _find_collective(inner))), None)
    return op if op.opcode.startswith(_COLLECTIVES) and not _ends_collective(op) else None


def _count_moved_bytes(op: Instruction) -> int:
    """Return the padded bytes of a collective's input or of its output, whichever is larger."""
    given = sum(operand.padded_bytes for operand in op.operands)
    # The output tuple of such a start also contains the input, which must not count twice.
    is_start = op.opcode == "all-gather-start" or op.name.startswith("async-collective-start")
    repeated = given if is_start else 0
    return max(given, op.padded_bytes - repeated)


def count_link_bytes(opcode: str, size: float, devices: int) -> float:
    """Return the bytes that each device sends over its links in a ring collective."""
    rounds = 2 if opcode.startswith("all-reduce") else 1
    return rounds * (devices - 1) / devices * size


def count_looped_work(priced: Iterable[Cost]) -> tuple[float, float]:
    """Count the FLOPs and accessed bytes of loop bodies, for all trips after the first.

    The compiler's own totals contain only the first trip of each loop. The bytes include padding.

    Args:
        priced: Result of `price_module`.
    """
    flops = moved = 0.0
    for cost in priced:
        op, more = cost.instruction, cost.trips - 1.0
        flops += more * count_flops(op)
        moved += more * sum(each.padded_bytes for each in (op, *op.operands))
    return flops, moved


def count_flops(op: Instruction) -> float:
    """Count the FLOPs of the dots and convolutions in an instruction, 2 per multiply-add."""
    if op.opcode in ("dot", "convolution"):
        count = _count_dot_products if op.opcode == "dot" else _count_convolution_products
        return 2.0 * op.shapes[0].elements * count(op)
    is_call = op.opcode in ("fusion", "call", "async-start")
    return sum(map(count_flops, op.inside)) if is_call else 0.0


def _count_dot_products(op: Instruction) -> int:
    """Return the number of products that a dot sums for each output element."""
    left, contracting = op.operands[0], op.get_attribute("lhs_contracting_dims")
    return math.prod(left.shapes[0].dimensions[int(d)] for d in contracting.split(",") if d)


def _count_convolution_products(op: Instruction) -> int:
    """Return the number of products that a convolution sums for each output element.

    The compiler writes matmuls as convolutions. The sum runs over the input features and the
    spatial dimensions of the kernel. But in two kinds of spatial dimensions, only one kernel
    element contributes to an output element. In a batch dimension of the matmul, the input is
    dilated by the kernel's size. In a dimension that only the kernel has, the input is padded by
    the kernel's size minus one. Such dimensions are not counted.
    """
    kernel, labels = op.operands[1], _DIM_LABELS.match(op.get_attribute("dim_labels"))
    assert labels is not None
    window = dict(part.split("=") for part in op.get_attribute("window").split())
    sizes = zip(labels[2], kernel.shapes[0].dimensions, strict=True)
    return math.prod(
        size
        for label, size in sizes
        if label == "i" or (label.isdigit() and not _is_single(window, int(label), size))
    )


def _is_single(window: dict[str, str], dimension: int, size: int) -> bool:
    def read_axis(name: str, default: str) -> str:
        values = window.get(name, "").split("x")
        return values[dimension] if dimension < len(values) and values[dimension] else default

    if int(read_axis("lhs_dilate", "1")) >= size > 1:
        return True
    low, _, high = read_axis("pad", "0_0").partition("_")
    return size > 1 and int(low) + int(high) >= 2 * (size - 1)
