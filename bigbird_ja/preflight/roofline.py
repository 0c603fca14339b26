"""What each op takes by machine code, what it must take, and what it is bound by.

The roofline of an op: the cycles in which its bytes go through HBM at the chip's bandwidth, and
those in which its products go through the matrix units at the chip's peak. Ops whose bundles
cannot be counted (they have none of their own, or as many as the data want) count with their priced
cycles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bigbird_ja.accelerators.chips import Chip
from bigbird_ja.preflight.cycles import Cost
from bigbird_ja.preflight.flops import instruction_flops
from bigbird_ja.preflight.hlo import Instruction, Module
from bigbird_ja.preflight.machine_code import Code

# A resource that is less full than this is not what an op waits for.
_LEAST = 0.25
NONE_FULL = "latency"
# libtpu's names of a bundle's slots, by what they belong to.
_UNITS: Mapping[str, tuple[str, ...]] = {
    "matrix unit": ("MATMUL", "MATPUSH"),
    "vector unit": ("VALU", "XLU", "EUP", "VPOP"),
    "loads": ("VLOAD", "VSTORE"),
}
_PICKING = frozenset({"slice", "dynamic-slice", "gather"})
_NAME = re.compile(r"%[\w.\-]+")
_METADATA = re.compile(r", (?:metadata=\{(?:[^{}\"]|\"[^\"]*\")*\}|backend_config=.*$)")


@dataclass(frozen=True)
class CodeCost:
    """One instruction's share of the step by machine code. Cycles of all its trips together."""

    cost: Cost
    bundle_cycles: float | None  # its bundles, one a cycle; None where they cannot be counted
    hbm_cycles: float  # its bytes in HBM, read and written once, at the chip's bandwidth
    matrix_cycles: float  # its products at the chip's peak
    bound_by: str | None  # a key of `_UNITS`, "HBM" or `NONE_FULL`; None where not counted

    @property
    def cycles(self) -> float:
        """Copies run beside the bundles: the longer of the two; the priced cycles where bundles
        cannot be counted."""
        if self.bundle_cycles is None:
            return self.cost.cycles
        return max(self.bundle_cycles, self.hbm_cycles)

    @property
    def as_cost(self) -> Cost:
        """For sums over kinds and layers, which know estimates only."""
        return replace(self.cost, estimated=self.cycles, priced=0.0)


def code_costs(
    module: Module, costs: Iterable[Cost], code: Mapping[str, Code], chip: Chip
) -> list[CodeCost]:
    """Every cost beside its machine code.

    Args:
        module: of which `costs` are.
        code: by the ops' names, of the same program.
    """
    ops = _Ops(module, code)
    places = {op.name: ops_beside for ops_beside in _beside(module) for op in ops_beside.values()}
    return [_code_cost(module, cost, ops, places, chip) for cost in costs]


def _beside(module: Module) -> Iterator[dict[str, Instruction]]:
    for instructions in module.computations.values():
        yield {op.name: op for op in instructions}


def _code_cost(
    module: Module,
    cost: Cost,
    ops: _Ops,
    places: Mapping[str, Mapping[str, Instruction]],
    chip: Chip,
) -> CodeCost:
    instruction = cost.instruction
    beside = places[instruction.name]
    hbm = hbm_cycles(hbm_bytes(module, instruction, beside), chip)
    flops = instruction_flops(module, instruction, beside)
    matrix = flops / chip.peak_flops * chip.clock_hz
    code = ops.of(instruction, beside)
    return CodeCost(
        cost,
        None if code is None else code.cycles * cost.trips,
        hbm * cost.trips,
        matrix * cost.trips,
        None if code is None else bound_by(code, hbm, matrix),
    )


def bound_by(code: Code, hbm: float, matrix: float) -> str:
    """The fullest resource while an op runs, or `NONE_FULL`.

    Args:
        hbm: cycles in which HBM is busy.
        matrix: cycles that the op's products take at the chip's peak.
    """
    cycles = max(code.cycles, hbm, 1.0)
    running = code.cycles / cycles  # the share of the time in which bundles run
    full = {
        unit: running * max(code.slots.get(slot, 0.0) for slot in slots)
        for unit, slots in _UNITS.items()
    }
    full["matrix unit"] = max(full["matrix unit"], matrix / cycles)
    full["HBM"] = hbm / cycles
    resource, share = max(full.items(), key=lambda item: item[1])
    return resource if share >= _LEAST else NONE_FULL


def hbm_cycles(size: float, chip: Chip) -> float:
    """Cycles in which so many bytes go through HBM at the chip's bandwidth."""
    return size / chip.hbm_bytes_per_second * chip.clock_hz


def hbm_bytes(module: Module, instruction: Instruction, beside: Mapping[str, Instruction]) -> int:
    """Bytes that an instruction reads from HBM and writes there, each array once, padded.

    Of an operand that a fusion only takes slices or rows from, those count; of an output that it
    only updates in place, the update.
    """
    inner = [op for name in instruction.called for op in module.computations.get(name, [])]
    total = sum(
        _read(inner, place, beside[name])
        for place, name in enumerate(instruction.operands)
        if name in beside
    )
    return total + _written(instruction, inner)


def _in_hbm(instruction: Instruction) -> int:
    return sum(shape.padded_bytes for shape in instruction.shapes if shape.in_hbm)


def _read(inner: list[Instruction], place: int, operand: Instruction) -> int:
    whole = _in_hbm(operand)
    parameters = [
        op.name for op in inner if op.opcode == "parameter" and f"parameter({place})" in op.text
    ]
    if not whole or not parameters:
        return whole
    users = [op for op in inner if parameters[0] in op.operands]
    if users and all(op.opcode in _PICKING and op.operands[0] == parameters[0] for op in users):
        return min(whole, sum(op.padded_bytes for op in users))
    updated = [op for op in users if _updates(op) and op.operands[0] == parameters[0]]
    return 0 if users and len(updated) == len(users) else whole


def _updates(instruction: Instruction) -> bool:
    return instruction.opcode == "dynamic-update-slice"


def _written(instruction: Instruction, inner: list[Instruction]) -> int:
    whole = _in_hbm(instruction)
    named = {op.name: op for op in inner}
    updates = [op for op in inner if _updates(op) and op.text.startswith("ROOT")]
    if whole and updates and updates[0].operands[1] in named:
        return min(whole, named[updates[0].operands[1]].padded_bytes)
    return whole


class _Ops:
    """Finds an instruction's analysis, by its name or by that of one like it."""

    def __init__(self, module: Module, code: Mapping[str, Code]) -> None:
        self._module, self._ops = module, code
        self._alike: dict[str, Code] = {}
        self._texts: dict[str, str] = {}
        for beside in _beside(module):
            for op in beside.values():
                if op.name in code:
                    self._alike[self._text(op, beside)] = code[op.name]

    def of(self, instruction: Instruction, beside: Mapping[str, Instruction]) -> Code | None:
        found = self._ops.get(instruction.name)
        found = found or self._alike.get(self._text(instruction, beside))
        return found if found and found.is_counted else None

    def _text(self, instruction: Instruction, beside: Mapping[str, Instruction]) -> str:
        """The same for instructions that differ in names and origin only."""
        of_operands = [beside[name].type_text for name in instruction.operands if name in beside]
        bodies = [self._body(name) for name in instruction.called]
        return "\n".join([_without_names(instruction.text), *of_operands, *bodies])

    def _body(self, name: str) -> str:
        if name not in self._texts:
            lines = [op.text for op in self._module.computations.get(name, [])]
            called = [c for op in self._module.computations.get(name, []) for c in op.called]
            self._texts[name] = _without_names("\n".join(lines)) + "".join(map(self._body, called))
        return self._texts[name]


def _without_names(text: str) -> str:
    """Names become numbers in the order in which they appear; origins go."""
    text = "\n".join(_METADATA.sub("", _METADATA.sub("", line)) for line in text.splitlines())
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), text)
