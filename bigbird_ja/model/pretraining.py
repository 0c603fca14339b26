"""What pretraining asks of the model: masked tokens, and whether segment B follows A."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from bigbird_ja.model import heads
from bigbird_ja.model.encoder import encode
from bigbird_ja.model.layers import Parameters
from bigbird_ja.settings.schema import Config


@tf.autograph.experimental.do_not_convert
def pretraining_metrics(
    params: Parameters,
    config: Config,
    batch: Mapping[str, tf.Tensor],
    *,
    dropout_key: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """What each prediction of a batch costs; sums are left to the caller.

    Args:
        params: float32 tensors.
        config: completed by a data set.
        batch: input_ids, segment_ids, (document_ids,) int32 [b, S]; masked_lm_positions,
            masked_lm_ids int32 [b, P]; (next_sentence_labels int32 [b]).
        dropout_key: as of `encode`.

    Returns:
        float32 [b, P]: masked_lm_losses and masked_lm_correct, to be weighted by
        `masked_lm_weights`; with next-sentence prediction also float32 [b]: next_sentence_losses
        and next_sentence_correct.
    """
    positions = batch["masked_lm_positions"]
    if config.make_data.nsp:  # which asks the first position
        positions = tf.pad(positions, [[0, 0], [1, 0]])
    hidden = encode(
        params,
        config,
        batch["input_ids"],
        batch["segment_ids"],
        batch.get("document_ids"),
        positions=positions,
        dropout_key=dropout_key,
    )
    masked = hidden[:, 1:] if config.make_data.nsp else hidden
    losses, correct = heads.masked_lm_losses(params, config, masked, batch["masked_lm_ids"])
    metrics = {"masked_lm_losses": losses, "masked_lm_correct": correct}
    if config.make_data.nsp:
        labels = batch["next_sentence_labels"]
        logits = heads.next_sentence_logits(params, hidden[:, 0])
        metrics["next_sentence_losses"] = heads.cross_entropy(logits, labels)
        hits = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), labels)
        metrics["next_sentence_correct"] = tf.cast(hits, tf.float32)
    return metrics
