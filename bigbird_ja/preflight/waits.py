"""How long a step waits for the copies that its compiler starts ahead of their use.

The compiler starts copies between HBM and the core's own memory beside other ops (`copy-start`,
`slice-start`) and waits for them where they are needed (`copy-done`, `slice-done`). HBM carries
them in the time that the ops between leave to it; for what is left at the `done`, the core waits.
A program is written in the order in which it runs, so that can be added up. Of the copies under
way, the one that is needed first goes first: no other order waits for less, so this is the least.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bigbird_ja.accelerators.chips import Chip
from bigbird_ja.preflight.cycles import CONTROL, trip_count
from bigbird_ja.preflight.hlo import Instruction, Module
from bigbird_ja.preflight.roofline import CodeCost, hbm_cycles

_STARTS = frozenset({"copy-start", "slice-start"})
_DONES = frozenset({"copy-done", "slice-done"})


@dataclass(frozen=True)
class Waits:
    """Of a step."""

    waiting_cycles: float
    copied_hbm_cycles: float  # in which HBM is busy with such copies


def waits(module: Module, found: Iterable[CodeCost], chip: Chip) -> Waits:
    """Adds up what a step waits for.

    Args:
        module: with a schedule.
        found: its ops' costs.
    """
    costs = {code.cost.instruction.name: code for code in found}
    run = _run(module, module.entry, costs, chip)
    return Waits(run.waiting, run.copied)


@dataclass
class _Run:
    """What one run of a computation takes, in cycles."""

    cycles: float = 0.0  # without waiting
    hbm: float = 0.0  # in which HBM is busy
    waiting: float = 0.0
    copied: float = 0.0  # of `hbm`, with copies beside other ops


def _run(module: Module, name: str, costs: Mapping[str, CodeCost], chip: Chip) -> _Run:
    instructions = module.computations.get(name, [])
    needed = {op.operands[0]: at for at, op in enumerate(instructions) if op.opcode in _DONES}
    total, copies = _Run(), _Copies()
    for place, op in enumerate(instructions):
        if op.opcode in _STARTS:
            busy = hbm_cycles(_moved_bytes(op), chip)
            copies.start(needed.get(op.name, len(instructions)), busy)
            total.copied += busy
            total.hbm += busy
        elif op.opcode in _DONES:
            total.waiting += copies.finish(place)
        else:
            one = _one(module, op, costs, chip)
            copies.go_on(max(one.cycles + one.waiting - one.hbm, 0.0))
            total.cycles += one.cycles
            total.hbm += one.hbm
            total.waiting += one.waiting
            total.copied += one.copied
    return total


def _one(module: Module, op: Instruction, costs: Mapping[str, CodeCost], chip: Chip) -> _Run:
    """One op, all trips of a loop together."""
    if op.opcode in CONTROL:
        trips = trip_count(module, op) or 1 if op.opcode == "while" else 1
        names = [op.body] if op.opcode == "while" and op.body else op.called
        # Of a conditional the dearest branch runs; the others have no costs.
        runs = [_run(module, name, costs, chip) for name in names]
        dearest = max(runs, key=lambda run: run.cycles, default=_Run())
        return _Run(*(trips * part for part in vars(dearest).values()))
    code = costs.get(op.name)
    if code is None:
        return _Run()
    return _Run(code.cycles / code.cost.trips, code.hbm_cycles / code.cost.trips)


def _moved_bytes(start: Instruction) -> int:
    """Bytes that a copy reads from HBM and writes there."""
    # (to, from, context) of a copy; ((from), to, context) of a slice, which moves what it makes.
    to, source = start.shapes[:2] if start.opcode == "copy-start" else start.shapes[1::-1]
    return to.padded_bytes * (to.in_hbm + source.in_hbm)


class _Copies:
    """The copies under way: when each is needed, and the cycles of HBM that it still takes."""

    def __init__(self) -> None:
        self._left: list[tuple[int, float]] = []  # the one that is needed first, first

    def start(self, needed: int, cycles: float) -> None:
        heapq.heappush(self._left, (needed, cycles))

    def go_on(self, cycles: float) -> None:
        """HBM has so many cycles for them."""
        while cycles > 0 and self._left:
            needed, left = heapq.heappop(self._left)
            if left > cycles:
                heapq.heappush(self._left, (needed, left - cycles))
            cycles -= left

    def finish(self, needed: int) -> float:
        """Cycles until all that is needed by now is there."""
        waited = 0.0
        while self._left and self._left[0][0] <= needed:
            waited += heapq.heappop(self._left)[1]
        return waited
