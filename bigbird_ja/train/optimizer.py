"""Update parameters and compute the learning rate, as pure functions.

Adam with decoupled weight decay, in two forms, and Muon (`train.muon`) for the layers' matrices in
its place:

- `adamw` (Loshchilov and Hutter 2019, and PyTorch): the running means are corrected for having
  started at zero. Biases and layer norms are not decayed.
- `google`: AdamWeightDecayOptimizer of Google's BERT and BigBird code, which leaves the correction
  out. With the usual betas its update of step t is (1 - 0.9**t) / sqrt(1 - 0.999**t) times as long:
  3.2 times at step 1, 6.6 times at step 12, 1.26 times at step 1,000, and then the same. It decays
  what has neither "LayerNorm" nor "bias" in its name, so `cls/predictions/transform/gamma` too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import tensorflow as tf

from bigbird_ja.settings.schema import TrainingConfig
from bigbird_ja.train import muon

Tensors = dict[str, tf.Tensor]

_BETA1 = 0.9  # decay of the running mean of gradients
_NOT_DECAYED_BY_GOOGLE = re.compile("LayerNorm|layer_norm|bias")


def global_norm(gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Compute the Euclidean length of all gradients together, float32 scalar."""
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients.values()]))


def clip_factor(norm: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """Compute what to multiply gradients by, so that their norm is at most `clip_norm` (0: any)."""
    return clip_norm / tf.maximum(norm, clip_norm) if clip_norm else tf.ones_like(norm)


def update(
    training: TrainingConfig,
    params: Mapping[str, tf.Tensor],
    slots: Mapping[str, Mapping[str, tf.Tensor]],
    gradients: Mapping[str, tf.Tensor],
    *,
    decayed: Mapping[str, bool],
    muons: Mapping[str, tf.Tensor],
    global_step: tf.Tensor,
    learning_rate: tf.Tensor,
    scale: tf.Tensor,
    keep: tf.Tensor,
) -> tuple[Tensors, dict[str, Tensors]]:
    """Update every parameter once; returns the new parameters and slots.

    Args:
        training: the rule, its betas and epsilon, and weight decay.
        params: float32 master weights.
        slots: `{"m": {...}, "v": {...}}`, as `model.params.slot_parameters` lists them.
        gradients: float32, of the same names.
        decayed: which parameters decay by `adamw`.
        muons: of the parameters that Muon updates `muon.updates`.
        global_step: integer scalar, updates made so far.
        learning_rate: float32 scalar.
        scale: float32 scalar that the gradients are multiplied by (clipping).
        keep: bool scalar; False returns everything unchanged.
    """
    rate, epsilon = _corrected(training, global_step, learning_rate)
    if training.update_rule == "google":
        decayed = {name: not _NOT_DECAYED_BY_GOOGLE.search(name) for name in params}
    new_params: Tensors = {}
    new_slots: dict[str, Tensors] = {"m": {}, "v": {}}
    for name, old in params.items():
        gradient = gradients[name] * scale
        m = slots["m"][name]
        if name in muons:
            new_m = muon.momentum(m, gradient)
            new = old - learning_rate * muons[name]
        else:
            v = slots["v"][name]
            new_m = m + (1.0 - _BETA1) * (gradient - m)
            new_v = v + (1.0 - training.adam_beta2) * (tf.square(gradient) - v)
            new = old - rate * new_m / (tf.sqrt(new_v) + epsilon)
            new_slots["v"][name] = tf.where(keep, new_v, v)
        if decayed[name] and training.weight_decay:
            new -= learning_rate * training.weight_decay * old
        new_params[name] = tf.where(keep, new, old)
        new_slots["m"][name] = tf.where(keep, new_m, m)
    return new_params, new_slots


def _corrected(
    training: TrainingConfig, global_step: tf.Tensor, rate: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor | float]:
    """Return rate and epsilon that stand for m_hat / (sqrt(v_hat) + epsilon), where corrected."""
    if training.update_rule == "google":
        return rate, training.adam_epsilon
    count = tf.cast(global_step, tf.float32) + 1.0
    correction = tf.sqrt(1.0 - tf.pow(training.adam_beta2, count))
    return rate * correction / (1.0 - tf.pow(_BETA1, count)), training.adam_epsilon * correction


def learning_rate(training: TrainingConfig, global_step: tf.Tensor) -> tf.Tensor:
    """Compute the rate of the update from `global_step` to `global_step + 1`, float32 scalar.

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
