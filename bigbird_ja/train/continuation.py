"""A run that goes on otherwise than it began: `--continue_with`, and more or fewer steps.

The optimiser's state is kept. The order of the data is cut into batches of another size from where
it had come to: the next batch begins at the first multiple of the new size that lies behind every
record that was seen, so none is seen twice and less than one batch is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bigbird_ja.data.masking import MaskRate
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.run.model import CONTINUED
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten, is_free, mask_rates

_BATCH = "training.global_batch_size"


def next_batch(meta: Meta, config: Config, events: Sequence[Mapping[str, Any]]) -> int:
    """The batch of the data's order, in batches of `config`, with which a checkpoint goes on.

    Args:
        meta: the checkpoint's sidecar; one of before `--continue_with` does not say its batch.
        config: with which the run goes on.
        events: of the run.
    """
    made = meta.step if meta.next_batch is None else meta.next_batch
    size = config.training.global_batch_size
    before = meta.global_batch_size or _batch_of(meta.config_fingerprint, events) or size
    return made if before == size else -(-made * before // size)


def _batch_of(fingerprint: str, events: Sequence[Mapping[str, Any]]) -> int | None:
    for event in events:
        if event.get("event") == CONTINUED and event.get("was") == fingerprint:
            change = (event.get("settings") or {}).get(_BATCH)
            return int(change[0]) if change else None
    return None


def changes(before: Config, now: Config) -> dict[str, list[Any]]:
    """Setting -> [old, new] of everything that a run does not accept without being told."""
    old, new = flatten(before), flatten(now)
    return {key: [old[key], new[key]] for key in old if old[key] != new[key] and not is_free(key)}


def schedule_words(before: Config, now: Config, step: int) -> str | None:
    """What other steps or another schedule do to the learning rate and the share of masked tokens;
    None where both go on."""
    old, new = before.training, now.training
    was, rate = _rate(before, step), _rate(now, step)
    masked = _masked(now, step)
    moved = "" if masked == _masked(before, step) else f"; {masked:.1%} of tokens are masked"
    if was == rate and old.num_train_steps == new.num_train_steps and not moved:
        return None
    ends = f"the {new.schedule} schedule ends at step {new.num_train_steps:,}"
    if old.num_train_steps != new.num_train_steps:
        ends += f", no longer at {old.num_train_steps:,}"
    return f"{ends}: the next learning rate is {rate:.3g}, and would have been {was:.3g}{moved}"


def _masked(config: Config, step: int) -> float | None:
    rates = mask_rates(config)
    return MaskRate(*rates).at(step) if rates else None


def _rate(config: Config, step: int) -> float:
    import tensorflow as tf

    from bigbird_ja.train import schedule

    with tf.device("/CPU:0"):
        return float(schedule.learning_rate(config.training, tf.constant(step)))
