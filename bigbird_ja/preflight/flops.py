"""FLOPs: what the compiled program does, and what the model needs.

The compiler counts every loop's body once; `looped_matmul_flops` is what that leaves out.
Model FLOPs follow Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B): only what the
mathematics needs, never what a layout or a recomputation adds.
"""

from __future__ import annotations

import math
import re

from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput
from bigbird_ja.model import pattern
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
    return _walk(module, module.entry, 1, multiply)


def looped_matmul_flops(module: Module) -> float:
    """Those FLOPs that a count of every loop's body once leaves out."""
    return matmul_flops(module) - matmul_flops(module, multiply=False)


def _walk(module: Module, name: str, trips: int, multiply: bool) -> float:
    instructions = module.computations.get(name, [])
    outputs = {op.name: op for op in instructions}
    total = 0.0
    for op in instructions:
        if op.opcode == "dot":
            total += trips * _dot_flops(op, outputs)
        elif op.opcode == "convolution":
            total += trips * _convolution_flops(op, outputs)
        elif op.opcode == "while" and op.body:
            inner = trips * (trip_count(module, op) or 1) if multiply else trips
            total += _walk(module, op.body, inner, multiply)
        elif op.opcode in ("fusion", "call", "conditional", "async-start"):
            total += sum(_walk(module, called, trips, multiply) for called in op.called)
    return total


def _dot_flops(op: Instruction, outputs: dict[str, Instruction]) -> float:
    left = outputs.get(op.operands[0]) if op.operands else None
    contracting = _CONTRACTING.search(op.text)
    if not left or not contracting:
        return 0.0
    sizes = left.shapes[0].dimensions
    length = math.prod(sizes[int(d)] for d in contracting[1].split(",") if d)
    return 2.0 * op.shapes[0].elements * length


def _convolution_flops(op: Instruction, outputs: dict[str, Instruction]) -> float:
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


def model_flops(config: Config, batch_per_core: int) -> float:
    """FLOPs that one core's step needs: forward once, backward twice.

    Per token and layer 2 x (4 h^2 + 2 h i) for the projections and the MLP; 4 h per visible pair
    of query and key (scores and context); per prediction 2 x (h^2 + h v) for the masked-LM head;
    with NSP 2 x (h^2 + 2 h) per sequence. Sparse attention counts the pairs that its pattern lets
    see each other, and nothing else. Additions, softmax, norms and the optimiser count nothing.
    """
    model, data = config.model, config.data
    hidden, length = model.hidden_size, data.seq_length or 0
    per_layer = length * 2 * (4 * hidden**2 + 2 * hidden * model.intermediate_size)
    per_layer += 4 * hidden * visible_pairs(config)
    head = (data.max_predictions_per_seq or 0) * 2 * (hidden**2 + hidden * (model.vocab_size or 0))
    pooler = 2 * (hidden**2 + 2 * hidden) if data.nsp else 0
    forward = model.num_layers * per_layer + head + pooler
    return 3.0 * batch_per_core * forward


def visible_pairs(config: Config) -> int:
    """Pairs of query and key that one head of one sequence lets see each other, padding aside.

    Raises:
        BadInput: a sequence length that the attention pattern cannot be laid over.
    """
    length = config.data.seq_length or 0
    try:
        if pattern.is_full(config, length):
            return length * length
        blocks = pattern.block_mask(config, 0, length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return round(float(blocks.sum()) / len(blocks)) * config.model.block_size**2
