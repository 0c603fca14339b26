"""Our random plan in Hugging Face's block-sparse attention, which reads none from a checkpoint.

In training it draws blocks of its own, and outside training it points every random block at block
0. For a comparison of everything else it is given ours here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bigbird_ja.model import pattern
from bigbird_ja.settings.schema import Config


def random_blocks(config: Config, length: int) -> list[np.ndarray] | None:
    """Each layer's random blocks as Hugging Face wants them: int64 [heads, n - 2, most per row].

    Rows with fewer are filled up with block 0, which every row sees anyway: `same_plan` counts it
    once. None where attention is full.
    """
    if pattern.is_full(config, length):
        return None
    layers = []
    for layer in range(config.model.num_layers):
        mask = pattern.block_mask(config, layer, length)[:, 1:-1].copy()
        row = np.arange(1, mask.shape[2] - 1)[:, None]
        column = np.arange(mask.shape[2])[None, :]
        mask &= (abs(row - column) > 1) & (column > 0) & (column < mask.shape[2] - 1)
        most = int(mask.sum(axis=-1).max())
        blocks = np.argsort(~mask, axis=-1, kind="stable")[:, :, :most]
        layers.append(np.where(np.take_along_axis(mask, blocks, axis=-1), blocks, 0))
    most = max(blocks.shape[-1] for blocks in layers)
    return [np.pad(b, [(0, 0), (0, 0), (0, most - b.shape[-1])]) for b in layers]


def with_random_blocks(model: Any, blocks: Sequence[np.ndarray]) -> Any:
    """Makes room in Hugging Face's attention for as many blocks per row as the plan has.

    The config is left alone: from its number the model decides which lengths get full attention.
    """
    for module in model.modules():
        if hasattr(module, "num_random_blocks"):
            module.num_random_blocks = blocks[0].shape[-1]
    return model


@contextmanager
def same_plan(blocks: Sequence[np.ndarray]) -> Iterator[None]:
    """Gives Hugging Face's attention our random blocks instead of its own."""
    from transformers.models.big_bird import modeling_big_bird

    attention = modeling_big_bird.BigBirdBlockSparseAttention
    heads = {layer: itertools.cycle(plan) for layer, plan in enumerate(blocks)}
    plain_mask = attention._create_rand_mask_from_inputs

    def all_heads(self: Any, *_: Any, **__: Any) -> list[np.ndarray]:
        return list(blocks[self.seed])

    def next_head(self: Any, *_: Any, **__: Any) -> np.ndarray:
        # At 1,024, 3,072 and 4,096 tokens Hugging Face asks once per head, in their order.
        return next(heads[self.seed])

    def once(from_mask: Any, to_mask: Any, plan: Any, *rest: Any) -> Any:
        """The mask of the random part without global blocks: those are seen already."""
        mask = plain_mask(from_mask, to_mask, plan, *rest)
        is_random = (plan > 0) & (plan < to_mask.shape[1] - 1)
        return mask * is_random.repeat_interleave(to_mask.shape[2], dim=-1)[:, :, :, None]

    changes = {
        "_bigbird_block_rand_mask_with_head": all_heads,
        "_bigbird_block_rand_mask": next_head,
        "_create_rand_mask_from_inputs": staticmethod(once),
    }
    before = {name: attention.__dict__[name] for name in changes}
    try:
        for name, function in changes.items():
            setattr(attention, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(attention, name, function)
