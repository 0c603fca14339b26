# Copyright 2026 the bigbird-ja authors. Licensed under the Apache License, Version 2.0.
"""BigBird as bigbird-ja trained it, for PyTorch and Hugging Face transformers (4.4x and 5).

transformers' own BigBird points every random block at block 0 outside training. These classes have
the same parameters and follow the recorded plan (`pattern.py`, beside this file in an exported
folder): logits equal the trainer's. Attention takes memory in proportion to the length.

    AutoModelForMaskedLM.from_pretrained(FOLDER, trust_remote_code=True)

With `attn_implementation="flex_attention"` a GPU runs it in one compiled kernel with a block mask.
Otherwise, and on a CPU, each block's keys are gathered for scaled-dot-product attention.

`attention_mask` is 0 for padding and 1 for a token, as always. Several documents in one sequence
are told apart by other numbers: tokens of different numbers do not see each other
(`document_numbers` makes them from `input_ids`). Encoders only: no cache, no cross-attention, no
attention probabilities. Needs torch, transformers and numpy; imports nothing of bigbird-ja.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as flex
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.models.big_bird import modeling_big_bird as big_bird

from bigbird_ja.model.pattern import block_mask, is_full, shortest_sparse

_FLEX_TILE = 128  # the largest tile of PyTorch's kernels for A100 and H100, forward and backward
_MOST_PLANS = 4  # that a model keeps, one for each length and device


def document_numbers(input_ids: torch.Tensor, sep_token_id: int, pad_token_id: int) -> torch.Tensor:
    """Return an `attention_mask` of packed documents: 1, 2, ... up to each [SEP]; 0 is padding.

    Args:
        input_ids: int64 [b, S].
        sep_token_id: of the tokenizer.
        pad_token_id: of the tokenizer.
    """
    is_end = (input_ids == sep_token_id).long()
    numbers = is_end.cumsum(1) - is_end + 1
    return numbers * (input_ids != pad_token_id)


class Plan:
    """Holds which blocks of a length see which, on one device; the same for every batch."""

    def __init__(self, settings: Any, length: int, device: torch.device) -> None:
        """Lay the pattern over a length.

        Args:
            settings: as `_settings` returns them.
            length: tokens, padded: short, or whole tiles of two blocks.
            device: of the tensors.
        """
        self.block_size = settings.model.block_size
        self.is_full = is_full(settings, length)
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in range(0 if self.is_full else settings.model.num_layers):
            sees = torch.from_numpy(block_mask(settings, layer, length)[:, 1:-1])
            most = int(sees.sum(-1).max())
            there, blocks = _seen_first(sees)
            kept = blocks[..., :most].to(device), there[..., :most].bool().to(device)
            self.layers.append(kept)
        self._settings, self._length, self._device = settings, length, device
        self._rows: dict[int, tuple[torch.Tensor, ...]] = {}  # of `flex_attention`, by layer

    def flex_mask(self, layer: int, numbers: torch.Tensor) -> flex.BlockMask:
        """Return the same as a block mask of tiles of `_FLEX_TILE`, which kernels take at once.

        Args:
            layer: which layer's plan.
            numbers: int64 [b, S]: a query sees keys of its own number; none sees 0.
        """
        rows, length = self.block_size, self._length
        tile = math.lcm(_FLEX_TILE, rows)
        if layer not in self._rows:
            sees = torch.from_numpy(block_mask(self._settings, layer, length))
            tiles, each = -(-length // tile), tile // rows
            missing = tiles * each - length // rows
            whole = functional.pad(sees, (0, missing, 0, missing))
            seen = whole.view(len(sees), tiles, each, tiles, each).any(4).any(2)
            made = sees, seen.sum(-1).int()[None], _seen_first(seen)[1].int()[None]
            self._rows[layer] = tuple(part.to(self._device) for part in made)
        sees, counts, blocks = self._rows[layer]

        # Exact within the tiles; uncompiled, `flex_attention` goes by this alone.
        def mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
            own, other = numbers[batch, query], numbers[batch, key]
            return sees[head, query // rows, key // rows] & (own == other) & (other > 0)

        return flex.BlockMask.from_kv_blocks(
            counts, blocks, BLOCK_SIZE=tile, mask_mod=mask, seq_lengths=(length, length)
        )


def _seen_first(sees: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (whether, which) for each row of blocks: seen ones first, in their order."""
    there, blocks = sees.long().sort(dim=-1, descending=True, stable=True)
    return there, blocks


def _flex_serves(*tensors: torch.Tensor) -> bool:
    """Return whether flex attention can run: PyTorch's has no gradients on a CPU."""
    return all(x.device.type != "cpu" or not x.requires_grad for x in tensors)


@functools.cache
def _flex_attention(device_type: str) -> Any:
    """Run flex attention compiled; on a CPU plain, to check it, in memory of the square."""
    if device_type == "cpu":
        return flex.flex_attention
    return torch.compile(flex.flex_attention, dynamic=False)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    numbers: torch.Tensor,
    plan: Plan,
    layer: int,
    flexes: bool = False,
) -> torch.Tensor:
    """Compute scaled dot-product attention over the blocks of a plan.

    Args:
        query: [b, heads, S, size], S as the plan's.
        key: of the same shape.
        value: of the same shape.
        numbers: int64 [b, S]: a query sees keys of its own number; none sees 0.
        plan: which blocks see which.
        layer: its number.
        flexes: whether `flex_attention` does it, where it can.

    Returns:
        [b, heads, S, size]; zero for queries that see nothing.
    """
    if plan.is_full:
        return _masked(query, key, value, numbers, numbers[:, None])
    if flexes and _flex_serves(query, key, value):
        mask = plan.flex_mask(layer, numbers)
        return _flex_attention(query.device.type)(query, key, value, block_mask=mask)
    rows, (blocks, there) = plan.block_size, plan.layers[layer]
    batch, heads, length, size = query.shape
    count = length // rows
    # The first and the last block see everything.
    ends = torch.cat([query[:, :, :rows], query[:, :, -rows:]], 2)
    end_numbers = torch.cat([numbers[:, :rows], numbers[:, -rows:]], 1)
    of_ends = _masked(ends, key, value, end_numbers, numbers[:, None])
    # Each block between them sees its own row of key blocks: [b, heads, count - 2, keys, size].
    head = torch.arange(heads, device=query.device)[:, None, None]
    keys, values = (
        x.reshape(batch, heads, count, rows, size)[:, head, blocks].flatten(3, 4)
        for x in (key, value)
    )
    seen = numbers.reshape(batch, count, rows)[:, blocks] * there[..., None]
    inner = query[:, :, rows:-rows].reshape(batch, heads, count - 2, rows, size)
    own = numbers[:, None, rows:-rows].reshape(batch, 1, count - 2, rows)
    of_inner = _masked(inner, keys, values, own, seen.flatten(3))
    first, last = of_ends.split(rows, 2)
    return torch.cat([first, of_inner.reshape(batch, heads, length - 2 * rows, size), last], 2)


def _masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """Compute attention where the numbers of query and key are equal and not 0.

    Args:
        query: [b, heads, ..., q, size].
        key: [b, heads, ..., k, size].
        value: of the same shape.
        own: int64 [b, ..., q], with a dimension of 1 for heads where there are more than two.
        seen: int64 [b, 1 or heads, ..., k].
    """
    own = own if own.dim() == seen.dim() else own[:, None]
    mask = (own[..., :, None] == seen[..., None, :]) & (seen[..., None, :] > 0)
    nothing = ~mask.any(-1, keepdim=True)
    # A row without a key would be 0 / 0: it sees all instead, and what comes out is dropped.
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask | nothing)
    return context.masked_fill(nothing, 0.0)


def _settings(config: Any) -> Any:
    """Return the settings that `pattern` reads, of a config that `bigbird-ja export` wrote."""
    names = ("attention_type", "block_size", "num_random_blocks", "num_attention_heads")
    stock = {name: getattr(config, name) for name in names}
    own = {name: config.bigbird_ja[name] for name in ("random_pattern", "pattern_seed")}
    model = SimpleNamespace(**stock, **own, num_layers=config.num_hidden_layers)
    return SimpleNamespace(model=model)


class BigBirdJaModel(big_bird.BigBirdModel):
    """Gives transformers' `BigBirdModel` the attention that the model was trained with."""

    _auto_class = "AutoModel"  # so that `save_pretrained` takes this file along
    _supports_sdpa = _supports_flex_attn = True

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        """Make the model, as transformers' class."""
        super().__init__(config, add_pooling_layer=add_pooling_layer)
        self.gradient_checkpointing = False
        self._plans: dict[tuple[int, torch.device], Plan] = {}  # of the lengths met last

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> Any:
        """Run as `BigBirdModel.forward`; `attention_mask` may number documents.

        Raises:
            ValueError: more tokens than the model has positions, or attention probabilities asked
                for.
        """
        if output_attentions:
            raise ValueError("attention probabilities are not kept: output_attentions=False")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        given = inputs_embeds if input_ids is None else input_ids
        assert given is not None
        length = given.shape[1]
        padded = self._padded(length)
        positions, segments = position_ids, token_type_ids
        hidden = self.embeddings(input_ids, segments, positions, inputs_embeds)
        if attention_mask is None:
            attention_mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        numbers = functional.pad(attention_mask.long(), (0, padded - length))
        states = self._states(hidden, numbers, self._plan(padded, hidden.device))
        hidden, kept = states[-1], tuple(states) if output_hidden_states else None
        pooled = None if self.pooler is None else self.activation(self.pooler(hidden[:, 0]))
        output = BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden, pooler_output=pooled, hidden_states=kept
        )
        return output.to_tuple() if return_dict is False else output

    def _states(
        self, hidden: torch.Tensor, numbers: torch.Tensor, plan: Plan
    ) -> list[torch.Tensor]:
        """Return the embeddings, and what comes out of each layer."""
        states = [hidden]
        flexes = self.config._attn_implementation == "flex_attention"
        for number, layer in enumerate(self.encoder.layer):
            arguments = layer, states[-1], numbers, plan, number, flexes
            if self.gradient_checkpointing and self.training:
                states.append(checkpoint(self._layer, *arguments, use_reentrant=False))
            else:
                states.append(self._layer(*arguments))
        return states

    def _plan(self, length: int, device: torch.device) -> Plan:
        if (length, device) not in self._plans:
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            self._plans[length, device] = Plan(_settings(self.config), length, device)
        return self._plans[length, device]

    def _padded(self, length: int) -> int:
        """Return the shortest length from `length` on that the pattern can be laid over."""
        config = self.config
        if length > config.max_position_embeddings:
            most = config.max_position_embeddings
            raise ValueError(f"{length} tokens; this model takes {most}: truncation=True")
        model, tile = _settings(config).model, 2 * config.block_size
        if config.attention_type == "original_full" or length < shortest_sparse(model):
            return length
        return -(-length // tile) * tile

    @staticmethod
    def _layer(
        layer: Any,
        hidden: torch.Tensor,
        numbers: torch.Tensor,
        plan: Plan,
        number: int,
        flexes: bool,
    ) -> torch.Tensor:
        """Run one of transformers' layers with our attention."""
        own, (batch, length, width) = layer.attention.self, hidden.shape
        heads, missing = own.num_attention_heads, numbers.shape[1] - length

        def split(projected: torch.Tensor) -> torch.Tensor:
            filled = functional.pad(projected, (0, 0, 0, missing))
            return filled.view(batch, length + missing, heads, width // heads).transpose(1, 2)

        query, key, value = (split(part(hidden)) for part in (own.query, own.key, own.value))
        context = attend(query, key, value, numbers, plan, number, flexes).transpose(1, 2)
        context = context.reshape(batch, length + missing, width)[:, :length]
        attended = layer.attention.output(context, hidden)
        return layer.output(layer.intermediate(attended), attended)


def _with_head(stock: Any) -> Any:
    """Make transformers' model for a task with `BigBirdJaModel` in it."""

    def begin(self: Any, config: Any, **options: Any) -> None:
        # The stock model, which makes room for ours here, knows one kind of attention alone.
        wanted, config._attn_implementation = config._attn_implementation, "eager"
        stock.__init__(self, config, **options)
        config._attn_implementation = wanted
        has_pooler = self.bert.pooler is not None
        self.bert = BigBirdJaModel(config, add_pooling_layer=has_pooler)
        self.post_init()

    text = f"transformers' `{stock.__name__}` with the attention that the model was trained with."
    about = {
        "__init__": begin,
        "__doc__": text,
        "__module__": __name__,
        "_auto_class": stock.__name__.replace("BigBird", "AutoModel"),
        "_supports_sdpa": True,
        "_supports_flex_attn": True,
    }
    return type(stock.__name__.replace("BigBird", "BigBirdJa"), (stock,), about)


BigBirdJaForPreTraining = _with_head(big_bird.BigBirdForPreTraining)
BigBirdJaForMaskedLM = _with_head(big_bird.BigBirdForMaskedLM)
BigBirdJaForSequenceClassification = _with_head(big_bird.BigBirdForSequenceClassification)
BigBirdJaForTokenClassification = _with_head(big_bird.BigBirdForTokenClassification)
BigBirdJaForMultipleChoice = _with_head(big_bird.BigBirdForMultipleChoice)
BigBirdJaForQuestionAnswering = _with_head(big_bird.BigBirdForQuestionAnswering)
