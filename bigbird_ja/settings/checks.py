"""Checks of conditions between settings, and warnings about unusual values."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Override
from bigbird_ja.settings.schema import Config

# Usual learning rate for a hidden size of 768. BERT uses 1e-4, ModernBERT 8e-4.
_USUAL_RATE = 5e-4
# Warn about a learning rate that differs from the usual one by at least this factor.
_FAR_OFF = 30
# Warn about tokens per step that differ from the preset's by at least this factor.
_OTHER_LENGTH = 4


def validate_config(config: Config) -> None:
    """Check conditions between settings that do not depend on the data.

    Raises:
        BadInput: A condition is violated. The message names the setting.
    """
    model, training = config.model, config.training
    if model.hidden_size % model.num_attention_heads:
        raise BadInput(
            f"model.hidden_size={model.hidden_size} is not divisible by"
            f" model.num_attention_heads={model.num_attention_heads}: change one of them"
        )
    if model.initializer == "subspaces" and (
        model.num_attention_heads < 2 or model.hidden_size // model.num_attention_heads % 2
    ):
        raise BadInput(
            f"model.num_attention_heads={model.num_attention_heads}: model.initializer=subspaces"
            " requires at least 2 heads, and an even number of dimensions per head (here"
            f" model.hidden_size={model.hidden_size} divided by the heads)"
        )
    if training.global_batch_size % training.gradient_accumulation_steps:
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} is not divisible by"
            f" training.gradient_accumulation_steps={training.gradient_accumulation_steps}: change"
            " one of them"
        )


def validate_on_data(config: Config, data: Data) -> None:
    """Check conditions between a run's settings and its data.

    Raises:
        BadInput: A condition is violated. The message names the settings and a remedy.
    """
    model, training = config.model, config.training
    last = training.final_masked_lm_prob
    if last is not None and training.masked_lm_prob is None:
        raise BadInput(
            f"training.final_masked_lm_prob={last} has no effect without training.masked_lm_prob:"
            " set both or neither"
        )
    if (model.max_position_embeddings or 0) < data.seq_length:
        raise BadInput(
            f"model.max_position_embeddings={model.max_position_embeddings} is less than"
            f" the data's seq_length of {data.seq_length}: increase or remove the setting"
        )
    if data.nsp and model.architecture == "modernbert":
        raise BadInput(
            "model.architecture=modernbert does not support segments, but the data set contains"
            " pairs of them: make the data without `nsp`, or set model.architecture=bigbird"
        )
    if data.nsp and not model.attend_across_documents:
        raise BadInput(
            "model.attend_across_documents=false masks segment B from segment A, so the next"
            " sentence cannot be predicted: set it to true, or make the data without `nsp`"
        )


def check_divides(global_batch: int, cores: int, micro_batches: int) -> int:
    """Return the number of sequences per core and micro-batch.

    Raises:
        BadInput: The batch size is not divisible by the number of cores times micro-batches. The
            message suggests the nearest batch sizes.
    """
    unit = cores * micro_batches
    if global_batch % unit:
        below, above = global_batch // unit * unit, -(-global_batch // unit) * unit
        nearest = f"{below} or {above}" if below else f"{above}"
        raise BadInput(
            f"training.global_batch_size={global_batch} is not divisible by {cores} cores x"
            f" {micro_batches} micro-batches (training.gradient_accumulation_steps): use {nearest}"
        )
    return global_batch // unit


def check_estimator(config: Config) -> None:
    """Check that a config does not require kernels, which TPUEstimator does not support.

    Raises:
        BadInput: The config sets `model.attention_implementation` to `kernel`.
    """
    if config.model.attention_implementation == "kernel":
        raise BadInput(
            "model.attention_implementation=kernel requires `engine` pjrt, since TPUEstimator does"
            " not support it"
        )


def list_config_warnings(
    config: Config,
    from_scratch: bool = True,
    overrides: Iterable[Override] = (),
    data: Data | None = None,
) -> list[str]:
    """Return a warning for each setting whose value is unusual.

    Args:
        config: resolved config.
        from_scratch: whether training starts from random weights. Otherwise a low learning rate is
            usual.
        overrides: values that were set, in the order of increasing priority.
        data: facts of the run's data set, if known.
    """
    training = config.training
    lines = _check_length(config, overrides, data) if data else []
    if training.warmup_steps >= training.num_train_steps:
        reached = training.num_train_steps / training.warmup_steps
        lines.append(
            f"training.warmup_steps={training.warmup_steps:,} is not below"
            f" training.num_train_steps={training.num_train_steps:,}, so the learning rate rises to"
            f" {reached:.1%} of training.learning_rate, and never decays"
        )
    rate, usual = training.learning_rate, _USUAL_RATE * math.sqrt(768 / config.model.hidden_size)
    if rate >= usual * _FAR_OFF or (from_scratch and rate <= usual / _FAR_OFF):
        side = "above" if rate > usual else "below"
        lines.append(
            f"training.learning_rate={rate:g} is {_FAR_OFF} times or more {side} the usual rate of"
            f" {usual:.1g} for this width. The usual rate is the same for AdamW and Muon, whose"
            " updates are scaled to AdamW's (rates of 0.02 are for Muon without this scale)"
        )
    return lines


def _check_length(config: Config, overrides: Iterable[Override], data: Data) -> list[str]:
    """Return a warning if a preset's learning rate is used with too many or few tokens per step."""
    every = list(overrides)
    last = {override.key: override for override in every}
    preset = {override.key: override.value for override in every if override.is_of_preset}
    rate, length = last.get("training.learning_rate"), preset.get("make_data.seq_length")
    if rate is None or not rate.is_of_preset or length is None:
        return []
    batch = config.training.global_batch_size
    wanted = preset.get("training.global_batch_size", batch) * length
    given = batch * data.seq_length
    if 1 / _OTHER_LENGTH < given / wanted < _OTHER_LENGTH:
        return []
    return [
        f"training.learning_rate={rate.value:g} of {rate.source} is for {wanted:,} tokens per step"
        f" ({wanted // length} x {length:,}), but this run has {given:,} ({batch} x"
        f" {data.seq_length:,}): set training.global_batch_size="
        f"{max(1, wanted // data.seq_length)}, or another learning rate"
    ]
