"""The learning rate as a function of the step."""

from __future__ import annotations

import math

import tensorflow as tf

from bigbird_ja.settings.schema import TrainingConfig


def learning_rate(training: TrainingConfig, global_step: tf.Tensor) -> tf.Tensor:
    """The rate of the update that takes `global_step` to `global_step + 1`, float32 scalar.

    Warm-up rises linearly and reaches the peak with its last step (the first step is not wasted on
    a rate of zero). After it: `linear` falls to zero at `num_train_steps`; `cosine` does so along
    half a cosine; `wsd` (warm-up, stable, decay) stays at the peak and falls linearly over the last
    `decay_fraction` of all steps. Beyond `num_train_steps` the rate is zero. `google` is that of
    BERT's and BigBird's code: the warm-up starts at a rate of zero, and after it the rate is what
    a line from the peak at step 0 to zero at `num_train_steps` has come to.

    Args:
        training: the config's section.
        global_step: integer scalar, updates made so far.
    """
    step = tf.cast(global_step, tf.float32)
    total, warmup = float(training.num_train_steps), float(training.warmup_steps)
    if training.schedule == "wsd":
        decay_steps = max(1.0, total * training.decay_fraction)
        factor = tf.minimum(1.0, (total - step) / decay_steps)
    else:
        left = (total - step) / max(1.0, total - warmup)
        factor = left
        if training.schedule == "cosine":
            factor = 0.5 - 0.5 * tf.cos(math.pi * tf.clip_by_value(left, 0.0, 1.0))
    if training.schedule == "google":
        factor = 1.0 - step / total
    factor = tf.clip_by_value(factor, 0.0, 1.0)
    if warmup:
        made = step if training.schedule == "google" else step + 1.0
        factor = tf.where(step < warmup, made / warmup, factor)
    return training.learning_rate * factor
