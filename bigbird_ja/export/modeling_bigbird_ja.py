# Copyright 2026 the bigbird-ja authors. Licensed under the Apache License, Version 2.0.
"""BigBird as bigbird-ja trained it, for PyTorch and Hugging Face transformers (4.4x and 5).

In transformers' own BigBird every random block is block 0, except during training. The classes in
this file have the same parameters as transformers' classes, but use the random blocks with which
the model was trained (`pattern.py`, next to this file in an exported folder). So the logits equal
the trainer's. The memory for sparse attention is proportional to the sequence length.

    AutoModelForMaskedLM.from_pretrained(FOLDER, trust_remote_code=True)

For each query block, the key blocks that it attends to are gathered, and passed to PyTorch's
`scaled_dot_product_attention`.

`attention_mask` is 0 for padding and 1 for a token, as usual in transformers. If a sequence
contains several documents, `attention_mask` may contain their numbers 1, 2, ... (`document_numbers`
computes them from `input_ids`). With these numbers, tokens of different documents do not attend to
each other. The classes are encoders. They support no cache, no cross-attention, and no output of
attention probabilities. This file needs torch, transformers and numpy, but not bigbird-ja.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.models.big_bird import modeling_big_bird as big_bird

from bigbird_ja.model.pattern import block_mask, is_full, padded_length

# Maximum number of plans (`Plan`) that a model caches. There is one plan per length and device.
_MAX_PLANS = 4


def document_numbers(input_ids: torch.Tensor, sep_token_id: int, pad_token_id: int) -> torch.Tensor:
    """Return an `attention_mask` with the number of each token's document, and 0 for padding.

    A document ends with [SEP]. The first document of each sequence has the number 1.

    Args:
        input_ids: int64 [batch, length], token ids.
        sep_token_id: the tokenizer's id of [SEP].
        pad_token_id: the tokenizer's id of [PAD].
    """
    is_end = (input_ids == sep_token_id).long()
    numbers = is_end.cumsum(1) - is_end + 1
    return numbers * (input_ids != pad_token_id)


# Key blocks that each query block attends to. The first and the last query block attend to all key
# blocks, so a plan leaves them out. For each layer there are two tensors [heads, query blocks - 2,
# key blocks]. The first tensor (int64) contains the numbers of key blocks, padded to one count for
# all query blocks. The second tensor (bool) is False for padding. If attention is full, the plan is
# None.
Plan = list[tuple[torch.Tensor, torch.Tensor]] | None


def plan_of(settings: Any, length: int, device: torch.device) -> Plan:
    """Return the key blocks that each query block attends to, for all layers.

    If attention is full, return None.

    Args:
        settings: result of `_settings`.
        length: padded length in tokens, as `padded_length` returns it.
        device: device of the tensors.
    """
    if is_full(settings, length):
        return None
    layers = []
    for layer in range(settings.model.num_layers):
        sees = torch.from_numpy(block_mask(settings, layer, length)[:, 1:-1])
        most = int(sees.sum(-1).max())
        # A stable sort puts the visible blocks first, in ascending order.
        visible, blocks = sees.long().sort(dim=-1, descending=True, stable=True)
        layers.append((blocks[..., :most].to(device), visible[..., :most].bool().to(device)))
    return layers


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    numbers: torch.Tensor,
    plan: Plan,
    layer: int,
    rows: int,
) -> torch.Tensor:
    """Compute scaled dot-product attention over the blocks of a plan.

    Args:
        query: [batch, heads, length, head size], where the length is padded as for the plan.
        key: the same shape.
        value: the same shape.
        numbers: int64 [batch, length], document numbers. A query attends to the keys with its own
            number, but to no key with the number 0.
        plan: key blocks that each query block attends to, or None for full attention.
        layer: number of the layer.
        rows: number of tokens in a block.

    Returns:
        [batch, heads, length, head size], zero for queries that attend to no key.
    """
    if plan is None:
        return _attend_same_document(query, key, value, numbers, numbers[:, None])
    blocks, visible = plan[layer]
    batch, heads, length, size = query.shape
    count = length // rows
    # The first and the last query block attend to all key blocks.
    ends = torch.cat([query[:, :, :rows], query[:, :, -rows:]], 2)
    end_numbers = torch.cat([numbers[:, :rows], numbers[:, -rows:]], 1)
    of_ends = _attend_same_document(ends, key, value, end_numbers, numbers[:, None])
    # The remaining query blocks attend to the key blocks of the plan. The shape of `keys` and
    # `values` is [batch, heads, count - 2, keys of a query block, size].
    head = torch.arange(heads, device=query.device)[:, None, None]
    keys, values = (
        x.reshape(batch, heads, count, rows, size)[:, head, blocks].flatten(3, 4)
        for x in (key, value)
    )
    seen = numbers.reshape(batch, count, rows)[:, blocks] * visible[..., None]
    inner = query[:, :, rows:-rows].reshape(batch, heads, count - 2, rows, size)
    own = numbers[:, None, rows:-rows].reshape(batch, 1, count - 2, rows)
    of_inner = _attend_same_document(inner, keys, values, own, seen.flatten(3))
    first, last = of_ends.split(rows, 2)
    return torch.cat([first, of_inner.reshape(batch, heads, length - 2 * rows, size), last], 2)


def _attend_same_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """Compute attention in which each query attends only to keys with its own document number.

    No query attends to a key with the number 0 (padding).

    Args:
        query: [batch, heads, ..., queries, head size].
        key: [batch, heads, ..., keys, head size].
        value: [batch, heads, ..., keys, head size].
        own: int64 [batch, queries] or [batch, 1, ..., queries], document numbers of the queries.
        seen: int64 [batch, 1 or heads, ..., keys], document numbers of the keys.
    """
    own = own if own.dim() == seen.dim() else own[:, None]
    mask = (own[..., :, None] == seen[..., None, :]) & (seen[..., None, :] > 0)
    nothing = ~mask.any(-1, keepdim=True)
    # The softmax of a query that attends to no key would be 0 / 0. Such a query is computed with
    # all keys, and its result is replaced by zero.
    context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask | nothing)
    return context.masked_fill(nothing, 0.0)


def _settings(config: Any) -> Any:
    """Convert the config of an exported model to the settings that the module `pattern` reads."""
    names = ("attention_type", "block_size", "num_random_blocks", "num_attention_heads")
    stock = {name: getattr(config, name) for name in names}
    own = {name: config.bigbird_ja[name] for name in ("random_pattern", "pattern_seed")}
    model = SimpleNamespace(**stock, **own, num_layers=config.num_hidden_layers)
    return SimpleNamespace(model=model)


class BigBirdJaModel(big_bird.BigBirdModel):
    """transformers' `BigBirdModel` with the attention that the model was trained with."""

    # If this attribute is set, `save_pretrained` copies this file.
    _auto_class = "AutoModel"

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        """Build the model, as transformers' class does."""
        super().__init__(config, add_pooling_layer=add_pooling_layer)
        self.gradient_checkpointing = False
        self._plans: dict[tuple[int, torch.device], Plan] = {}

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
        """Run the encoder as `BigBirdModel.forward` does.

        `attention_mask` may contain document numbers (see `document_numbers`).

        Raises:
            ValueError: There are more tokens than the model accepts, attention probabilities are
                requested, or not exactly one of `input_ids` and `inputs_embeds` is given.
        """
        if output_attentions:
            raise ValueError("attention probabilities are not stored: set output_attentions=False")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        given = inputs_embeds if input_ids is None else input_ids
        assert given is not None
        length = given.shape[1]
        padded = self._padded_length(length)
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
        """Return the embeddings, and the output of each layer."""
        states = [hidden]
        for number, layer in enumerate(self.encoder.layer):
            arguments = layer, states[-1], numbers, plan, number
            if self.gradient_checkpointing and self.training:
                states.append(checkpoint(self._layer, *arguments, use_reentrant=False))
            else:
                states.append(self._layer(*arguments))
        return states

    def _plan(self, length: int, device: torch.device) -> Plan:
        if (length, device) not in self._plans:
            if len(self._plans) == _MAX_PLANS:
                self._plans.clear()
            self._plans[length, device] = plan_of(_settings(self.config), length, device)
        return self._plans[length, device]

    def _padded_length(self, length: int) -> int:
        """Return the shortest length, at least `length`, that the attention pattern accepts."""
        config = self.config
        if length > config.max_position_embeddings:
            most = config.max_position_embeddings
            raise ValueError(f"{length} tokens, but this model takes {most}: set truncation=True")
        return padded_length(_settings(config).model, length)

    def _layer(
        self, layer: Any, hidden: torch.Tensor, numbers: torch.Tensor, plan: Plan, number: int
    ) -> torch.Tensor:
        """Run one of transformers' layers with the attention of `attend`."""
        own, (batch, length, width) = layer.attention.self, hidden.shape
        heads, missing = own.num_attention_heads, numbers.shape[1] - length

        def split(projected: torch.Tensor) -> torch.Tensor:
            filled = functional.pad(projected, (0, 0, 0, missing))
            return filled.view(batch, length + missing, heads, width // heads).transpose(1, 2)

        query, key, value = (split(part(hidden)) for part in (own.query, own.key, own.value))
        rows = self.config.block_size
        context = attend(query, key, value, numbers, plan, number, rows).transpose(1, 2)
        context = context.reshape(batch, length + missing, width)[:, :length]
        attended = layer.attention.output(context, hidden)
        return layer.output(layer.intermediate(attended), attended)


def _add_head(stock: Any) -> Any:
    """Return a subclass of transformers' model for a task, with `BigBirdJaModel` as its encoder."""

    def begin(self: Any, config: Any, **options: Any) -> None:
        stock.__init__(self, config, **options)
        has_pooler = self.bert.pooler is not None
        self.bert = BigBirdJaModel(config, add_pooling_layer=has_pooler)
        self.post_init()

    text = f"transformers' `{stock.__name__}` with the attention that the model was trained with."
    about = {
        "__init__": begin,
        "__doc__": text,
        "__module__": __name__,
        "_auto_class": stock.__name__.replace("BigBird", "AutoModel"),
    }
    return type(stock.__name__.replace("BigBird", "BigBirdJa"), (stock,), about)


BigBirdJaForPreTraining = _add_head(big_bird.BigBirdForPreTraining)
BigBirdJaForMaskedLM = _add_head(big_bird.BigBirdForMaskedLM)
BigBirdJaForSequenceClassification = _add_head(big_bird.BigBirdForSequenceClassification)
BigBirdJaForTokenClassification = _add_head(big_bird.BigBirdForTokenClassification)
BigBirdJaForMultipleChoice = _add_head(big_bird.BigBirdForMultipleChoice)
BigBirdJaForQuestionAnswering = _add_head(big_bird.BigBirdForQuestionAnswering)
