"""Parser of batches of serialized records (see `tfrecords`) in TensorFlow."""

import tensorflow as tf

from bigbird_ja.data import tfrecords
from bigbird_ja.data.manifest import DataSpec


def parse_dynamic(spec: DataSpec, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parse dynamic records, which are not masked yet.

    Args:
        spec: spec of the data set.
        serialized: string [b], records.

    Returns:
        `tokens` int32 [b, S], `word_starts` bool [b, S], `segment_ids` int32 [b, S],
        `next_sentence_labels` int32 [b], where S is `spec.seq_length`.
    """

    def decode(name: str, kind: tf.DType, length: int) -> tf.Tensor:
        # The op fails if the records of a batch differ in length.
        return tf.ensure_shape(tf.io.decode_raw(parsed[name], kind), [None, length])

    length = spec.seq_length
    numbers = ["segment_b", "next_sentence_labels"] if spec.nsp else []
    kinds = {"tokens": tf.string, "word_starts": tf.string, **dict.fromkeys(numbers, tf.int64)}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    parsed = tf.io.parse_example(serialized, features)
    kind = tf.as_dtype(tfrecords.choose_token_dtype(spec.vocab_size))
    tokens = tf.cast(decode("tokens", kind, length), tf.int32)
    packed = decode("word_starts", tf.uint8, -(-length // 8))
    bits = tf.bitwise.bitwise_and(
        packed[:, :, None], tf.constant([128, 64, 32, 16, 8, 4, 2, 1], tf.uint8)
    )
    starts = tf.reshape(bits > 0, [-1, packed.shape[1] * 8])[:, :length]
    result = {"tokens": tokens, "word_starts": starts, **_add_unused_labels(tokens)}
    if spec.nsp:
        positions = tf.range(length, dtype=tf.int64)[None, :]
        in_b = (positions >= parsed["segment_b"][:, None]) & tf.not_equal(tokens, spec.pad_id)
        result["segment_ids"] = tf.cast(in_b, tf.int32)
        result["next_sentence_labels"] = tf.cast(parsed["next_sentence_labels"], tf.int32)
    return result


def _add_unused_labels(ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return `segment_ids` and `next_sentence_labels` of zeros, for records without a segment B."""
    return {"segment_ids": tf.zeros_like(ids), "next_sentence_labels": tf.zeros_like(ids[:, 0])}


def parse_static(spec: DataSpec, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parse static records (BERT's classic features) into model inputs.

    Args:
        spec: spec of the data set.
        serialized: string [b], records.

    Returns:
        `input_ids`, `segment_ids` int32 [b, S]; `masked_lm_positions`, `masked_lm_ids` int32
        [b, P]; `masked_lm_weights` float32 [b, P]; `next_sentence_labels` int32 [b]. S is
        `spec.seq_length`, and P is `spec.max_predictions_per_seq`.
    """
    length, most = spec.seq_length, spec.max_predictions_per_seq
    lengths = {"input_ids": length, "masked_lm_positions": most, "masked_lm_ids": most}
    if spec.nsp:
        lengths |= {"segment_ids": length, "next_sentence_labels": 1}
    features = {name: tf.io.FixedLenFeature([n], tf.int64) for name, n in lengths.items()}
    features["masked_lm_weights"] = tf.io.FixedLenFeature([most], tf.float32)
    parsed = tf.io.parse_example(serialized, features)
    weights = parsed.pop("masked_lm_weights")
    result = {name: tf.cast(value, tf.int32) for name, value in parsed.items()}
    if spec.nsp:
        result["next_sentence_labels"] = result["next_sentence_labels"][:, 0]
    else:
        result |= _add_unused_labels(result["input_ids"])
    return {**result, "masked_lm_weights": weights}


def number_documents(spec: DataSpec, input_ids: tf.Tensor) -> tf.Tensor:
    """Return the document number of each position: int32 [b, S], from 1, and 0 for padding.

    Each [SEP] ends a document. No text contains [SEP], and masking replaces no [SEP].
    """
    ends = tf.cast(tf.equal(input_ids, spec.special_ids["sep"]), tf.int32)
    runs = tf.cumsum(ends, axis=1, exclusive=True) + 1
    return tf.where(tf.equal(input_ids, spec.pad_id), 0, runs)
