"""What goes between devices: sums of gradients, and the parts of divided optimizer state."""

from __future__ import annotations

from collections.abc import Mapping

from bigbird_ja.preflight.hlo import Instruction, Module

# What begins work that runs beside the computation. Newer compilers write `custom-call-start` where
# that work is given to the chip's SparseCores (gathers, sums); its operands come with the update.
STARTS = frozenset({"async-start", "call-start", "custom-call-start"})
_OPCODES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")


def collective_of(module: Module, instruction: Instruction) -> Instruction | None:
    """The instruction that moves data between devices: this one, or the one in this fusion.

    The second half of an asynchronous pair is none: the first one stands for both.
    """
    if instruction.opcode in ("fusion", "call", *STARTS):
        inside = (op for name in instruction.called for op in module.computations.get(name, []))
        return next((found for op in inside if (found := collective_of(module, op))), None)
    is_second = instruction.opcode.endswith("-done")
    return instruction if instruction.opcode.startswith(_OPCODES) and not is_second else None


def is_second_half(instruction: Instruction) -> bool:
    """Whether it only waits for what another instruction has begun."""
    return instruction.opcode.startswith(_OPCODES) and instruction.opcode.endswith("-done")


def whole_bytes(instruction: Instruction, sizes: Mapping[str, int]) -> int:
    """The larger of what goes in and what comes out, padded.

    Args:
        sizes: padded bytes of the instructions beside it, by name.
    """
    given = sum(sizes.get(name, 0) for name in instruction.operands)
    # The first half of an all-gather gives its input again, beside what it makes of it.
    repeats_input = instruction.opcode == "all-gather-start"
    return max(given, instruction.padded_bytes - (given if repeats_input else 0))


def link_bytes(opcode: str, whole: float, devices: int) -> float:
    """What each device's links carry, in a ring."""
    trips = 2 if opcode.startswith("all-reduce") else 1
    return trips * (devices - 1) / devices * whole
