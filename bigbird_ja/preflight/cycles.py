"""Priced cycles of an optimised HLO module: the compiler's estimates plus a price for the rest.

The compiler writes `estimated_cycles` on most fusions and on no relayout, gather, scatter or
concatenation, so a design could hide its cost in those. An instruction without an estimate is
therefore priced at 2 x its padded output bytes / 200 bytes per cycle, the rate that the compiler
charges itself for relayout copies. What goes between devices is priced in the same way, by its
input where that is larger than its output: a price for memory, not for links. Bodies of `while`
count once per trip. Pairs of asynchronous copies and slices run beside the computation and are
free, and so is what moves no data (tuples, bitcasts, parameters, constants, the `ConcatBitcast`
that names the pieces of one asynchronous copy, which lie side by side already, as one array: XLA,
memory_space_assignment, SlicedCopyAllocation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bigbird_ja.preflight import collectives
from bigbird_ja.preflight.hlo import Instruction, Module

PRICE_BYTES_PER_CYCLE = 200.0

_FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all",
        "add-dependency", "opt-barrier", "copy-start", "copy-done", "slice-start", "slice-done",
        "partition-id", "replica-id", "domain",
    }
)  # fmt: skip
_ASYNC_ENDS = frozenset(
    start.replace("start", end) for start in collectives.STARTS for end in ("update", "done")
)
_FREE_WHEN_ASYNC = frozenset({"copy", "slice", "dynamic-slice", "parameter", "bitcast"})
CONTROL = frozenset({"while", "conditional", "call"})


@dataclass(frozen=True)
class Cost:
    """One instruction's share of the step."""

    instruction: Instruction
    trips: int  # how often it runs in one step
    estimated: float  # cycles, all trips together
    priced: float  # cycles of the price, all trips together; 0 where there is an estimate
    trips_known: bool = True  # False: inside a loop whose trip count the compiler does not know
    collective: str | None = None  # opcode of what goes between devices
    moved_bytes: float = 0.0  # by it, whole, all trips together

    @property
    def cycles(self) -> float:
        return self.estimated + self.priced


def costs(module: Module) -> list[Cost]:
    """The cost of every instruction that runs, loops multiplied out."""
    return list(_walk(module, module.entry, 1, True))


def _walk(module: Module, name: str, trips: int, known: bool) -> Iterator[Cost]:
    instructions = module.computations.get(name, [])
    sizes = {op.name: op.padded_bytes for op in instructions}
    arriving = {op.name for op in instructions if op.opcode == "slice-done"}
    for instruction in instructions:
        if instruction.opcode in CONTROL:
            yield from _walk_control(module, instruction, trips, known)
        elif not _is_free(module, instruction) and not _joins_pieces(instruction, arriving):
            moving = collectives.collective_of(module, instruction)
            # In an asynchronous call the inner one has the shapes.
            of = moving if moving and instruction.opcode in collectives.STARTS else instruction
            size = collectives.whole_bytes(of, sizes) if moving else _offloaded(module, of)
            estimate = instruction.estimated_cycles
            priced = 0.0 if estimate is not None else price(size or instruction.padded_bytes)
            yield Cost(
                instruction, trips, float(estimate or 0) * trips, priced * trips, known,
                moving.opcode if moving else None, size * trips if moving else 0.0,
            )  # fmt: skip


def _walk_control(
    module: Module, instruction: Instruction, trips: int, known: bool
) -> Iterator[Cost]:
    if instruction.opcode == "while":
        count = trip_count(module, instruction)
        if instruction.body:
            yield from _walk(
                module, instruction.body, trips * (count or 1), known and count is not None
            )
    elif instruction.opcode == "conditional":
        # One branch runs: the dearest, so that the figure is never too small.
        branches = [list(_walk(module, called, trips, known)) for called in instruction.called]
        yield from max(branches, key=lambda found: sum(c.cycles for c in found), default=[])
    else:
        for called in instruction.called:
            yield from _walk(module, called, trips, known)


def trip_count(module: Module, loop: Instruction) -> int | None:
    """How often a `while` runs its body, or None where its text does not tell.

    Either the compiler's own note, or read off the usual counter: the condition compares one
    element of the loop's tuple with a constant, it starts at a constant and grows by one.
    """
    if loop.trip_count is not None:
        return loop.trip_count
    condition = module.computations.get(loop.condition or "", [])
    named = {op.name: op for op in condition}
    for compare in condition:
        if compare.opcode != "compare" or compare.direction not in ("LT", "LE"):
            continue
        counter, bound = (named.get(name) for name in compare.operands)
        end = bound.constant if bound else None
        if not counter or counter.tuple_index is None or end is None:
            continue
        start = _initial(module, loop, counter.tuple_index)
        if start is not None:
            return max(end - start + (compare.direction == "LE"), 0)
    return None


def _initial(module: Module, loop: Instruction, index: int) -> int | None:
    """The constant that a loop's tuple holds at `index` before the first trip."""
    for instructions in module.computations.values():
        named = {op.name: op for op in instructions}
        if loop.name not in named:
            continue
        initial = named.get(loop.operands[0])
        value = None
        if initial and initial.opcode == "tuple" and index < len(initial.operands):
            value = named.get(initial.operands[index])
        while value and value.opcode in ("copy", "bitcast") and value.operands:
            value = named.get(value.operands[0])
        return value.constant if value else None
    return None


def price(size: float) -> float:
    """Cycles charged for that many bytes where the compiler gives no estimate."""
    return 2.0 * size / PRICE_BYTES_PER_CYCLE


def _is_free(module: Module, instruction: Instruction) -> bool:
    if instruction.opcode in _FREE:
        return True
    if collectives.is_second_half(instruction):
        return True
    if instruction.opcode in _ASYNC_ENDS:
        return True  # the start carries the cost
    if instruction.opcode not in collectives.STARTS:
        return False
    inner = [
        op.opcode for called in instruction.called for op in module.computations.get(called, [])
    ]
    return bool(inner) and all(opcode in _FREE_WHEN_ASYNC for opcode in inner)


def _offloaded(module: Module, instruction: Instruction) -> int:
    """Bytes of what a SparseCore makes: the start of its work has none of its own; else 0."""
    if instruction.opcode != "custom-call-start":
        return 0
    roots = (module.computations.get(name, [])[-1:] for name in instruction.called)
    return sum(root.padded_bytes for found in roots for root in found)


def _joins_pieces(instruction: Instruction, arriving: set[str]) -> bool:
    """Whether it only gives one name to the pieces of an asynchronous copy."""
    return (
        instruction.opcode == "custom-call"
        and 'custom_call_target="ConcatBitcast"' in instruction.text
        and arriving.issuperset(instruction.operands)
    )


def looped_bytes(module: Module) -> float:
    """Bytes read and written by loops' bodies beyond their first trip.

    The compiler's own count takes every body once. Padding is counted in, as it is moved too.
    """
    sizes = {op.name: op.padded_bytes for ops in module.computations.values() for op in ops}
    return sum(
        (cost.trips - 1.0)
        * (cost.instruction.padded_bytes + sum(sizes.get(n, 0) for n in cost.instruction.operands))
        for cost in costs(module)
        if cost.trips > 1
    )
