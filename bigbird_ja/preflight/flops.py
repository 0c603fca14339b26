"""FLOPs of a compiled program.

The compiler counts every loop's body once; `looped_matmul_flops` is what that leaves out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from bigbird_ja.preflight.cycles import trip_count
from bigbird_ja.preflight.hlo import Instruction, Module

_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_WINDOW = re.compile(r"window=\{([^}]*)\}")


def matmul_flops(module: Module, multiply: bool = True) -> float:
    """FLOPs of all dots and convolutions (2 per multiply and add).

    Args:
        multiply: loops' bodies count once per trip; else once.
    """
    return _walk(module, module.entry, multiply)


def looped_matmul_flops(module: Module) -> float:
    """Those FLOPs that a count of every loop's body once leaves out."""
    return matmul_flops(module) - matmul_flops(module, multiply=False)


def instruction_flops(
    module: Module, op: Instruction, outputs: Mapping[str, Instruction], multiply: bool = True
) -> float:
    """FLOPs of the dots and convolutions in one instruction.

    Args:
        outputs: the instructions beside it, by name.
    """
    if op.opcode == "dot":
        return _dot_flops(op, outputs)
    if op.opcode == "convolution":
        return _convolution_flops(op, outputs)
    if op.opcode == "while" and op.body:
        trips = (trip_count(module, op) or 1) if multiply else 1
        return trips * _walk(module, op.body, multiply)
    if op.opcode in ("fusion", "call", "conditional", "async-start"):
        return sum(_walk(module, called, multiply) for called in op.called)
    return 0.0


def _walk(module: Module, name: str, multiply: bool) -> float:
    instructions = module.computations.get(name, [])
    outputs = {op.name: op for op in instructions}
    return sum(instruction_flops(module, op, outputs, multiply) for op in instructions)


def _dot_flops(op: Instruction, outputs: Mapping[str, Instruction]) -> float:
    left = outputs.get(op.operands[0]) if op.operands else None
    contracting = _CONTRACTING.search(op.text)
    if not left or not contracting:
        return 0.0
    sizes = left.shapes[0].dimensions
    length = math.prod(sizes[int(d)] for d in contracting[1].split(",") if d)
    return 2.0 * op.shapes[0].elements * length


def _convolution_flops(op: Instruction, outputs: Mapping[str, Instruction]) -> float:
    """Of the convolutions that this compiler writes for matmuls.

    A spatial dimension of the kernel is summed over, unless the window only picks one element of
    it: for a batch dimension the input is dilated by the window's size, for a dimension that comes
    from the kernel alone the input is padded by the window's size less one.
    """
    kernel = outputs.get(op.operands[1]) if len(op.operands) > 1 else None
    labels = _DIM_LABELS.search(op.text)
    if not kernel or not labels:
        return 0.0
    window = _WINDOW.search(op.text)
    fields = dict(f.split("=") for f in window[1].split()) if window else {}
    length = 1
    for place, label in enumerate(labels[2]):
        size = kernel.shapes[0].dimensions[place]
        if label == "i" or (label.isdigit() and not _picks_one(fields, int(label), size)):
            length *= size
    return 2.0 * op.shapes[0].elements * length


def _picks_one(fields: dict[str, str], dimension: int, size: int) -> bool:
    def at(name: str, default: str) -> str:
        values = fields.get(name, "").split("x")
        return values[dimension] if dimension < len(values) and values[dimension] else default

    if int(at("lhs_dilate", "1")) >= size > 1:
        return True
    low, _, high = at("pad", "0_0").partition("_")
    return size > 1 and int(low) + int(high) >= 2 * (size - 1)
