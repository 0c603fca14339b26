"""Records as TensorFlow reads them: whole batches of serialised `tf.train.Example` at once.

`tfrecords` writes them and documents their features.
"""

from __future__ import annotations

import tensorflow as tf

from bigbird_ja.data.manifest import Manifest


def parse_dynamic(manifest: Manifest, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses dynamic records.

    Args:
        manifest: lengths and the width of a token.
        serialized: string [b].

    Returns:
        `tokens` int32 [b, S], `word_starts` bool [b, S], `segment_ids` int32 [b, S],
        `next_sentence_labels` int32 [b]; of mixed corpora `corpus_ids` int32 [b].
    """
    length = manifest.seq_length
    features = {
        "tokens": tf.io.FixedLenFeature([], tf.string),
        "word_starts": tf.io.FixedLenFeature([], tf.string),
    }
    if manifest.nsp:
        features["segment_b"] = tf.io.FixedLenFeature([], tf.int64)
        features["next_sentence_labels"] = tf.io.FixedLenFeature([], tf.int64)
    if manifest.mixture:
        features["corpus_ids"] = tf.io.FixedLenFeature([], tf.int64)
    parsed = tf.io.parse_example(serialized, features)
    tokens = _decoded(
        parsed["tokens"], tf.uint16 if manifest.token_bytes == 2 else tf.int32, length
    )
    tokens = tf.cast(tokens, tf.int32)
    packed = _decoded(parsed["word_starts"], tf.uint8, -(-length // 8))
    bits = tf.bitwise.bitwise_and(
        packed[:, :, None], tf.constant([128, 64, 32, 16, 8, 4, 2, 1], tf.uint8)
    )
    starts = tf.reshape(bits > 0, [-1, packed.shape[1] * 8])[:, :length]
    if not manifest.nsp:
        segments = tf.zeros_like(tokens)
        labels = tf.zeros_like(tokens[:, 0])
    else:
        positions = tf.range(length, dtype=tf.int64)[None, :]
        in_b = (positions >= parsed["segment_b"][:, None]) & tf.not_equal(tokens, manifest.pad_id)
        segments = tf.cast(in_b, tf.int32)
        labels = tf.cast(parsed["next_sentence_labels"], tf.int32)
    result = {
        "tokens": tokens,
        "word_starts": starts,
        "segment_ids": segments,
        "next_sentence_labels": labels,
    }
    if manifest.mixture:
        result["corpus_ids"] = tf.cast(parsed["corpus_ids"], tf.int32)
    return result


def cut(manifest: Manifest, parsed: dict[str, tf.Tensor], length: int) -> dict[str, tf.Tensor]:
    """Cuts dynamic records into sequences of `length` tokens, which divides theirs.

    Each begins with [CLS] and ends with [SEP], in the place of the token that stood there; what is
    all padding stays so.

    Args:
        manifest: whose special ids they are.
        parsed: as `parse_dynamic` has it, without next-sentence labels that mean anything.

    Returns:
        The same features, [b * S / length, length]: all of the first record before the second.
    """
    tokens, starts = (tf.reshape(parsed[name], [-1, length]) for name in ("tokens", "word_starts"))
    special, places = manifest.special_ids, tf.range(length)[None, :]
    is_text = tf.not_equal(tokens, manifest.pad_id)
    tokens = tf.where(is_text & tf.equal(places, length - 1), special["sep"], tokens)
    tokens = tf.where(is_text & tf.equal(places, 0), special["cls"], tokens)
    return {
        "tokens": tokens,
        "word_starts": starts,
        "segment_ids": tf.zeros_like(tokens),
        "next_sentence_labels": tf.zeros_like(tokens[:, 0]),
    }


def parse_static(manifest: Manifest, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses static records (the classic features) into what a model reads, without document ids.

    Args:
        manifest: lengths.
        serialized: string [b].

    Returns:
        `input_ids`, `segment_ids` int32 [b, S]; `masked_lm_positions`, `masked_lm_ids` int32
        [b, P]; `masked_lm_weights` float32 [b, P]; `next_sentence_labels` int32 [b]; of mixed
        corpora `corpus_ids` int32 [b].
    """
    length, most = manifest.seq_length, manifest.max_predictions_per_seq
    features = {
        "input_ids": tf.io.FixedLenFeature([length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([most], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([most], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([most], tf.float32),
    }
    if manifest.nsp:
        features["segment_ids"] = tf.io.FixedLenFeature([length], tf.int64)
        features["next_sentence_labels"] = tf.io.FixedLenFeature([1], tf.int64)
    if manifest.mixture:
        features["corpus_ids"] = tf.io.FixedLenFeature([1], tf.int64)
    parsed = tf.io.parse_example(serialized, features)
    result = {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in parsed.items()
    }
    for name in ("next_sentence_labels", "corpus_ids"):
        if name in result:
            result[name] = result[name][:, 0]
    if not manifest.nsp:
        result["segment_ids"] = tf.zeros_like(result["input_ids"])
        result["next_sentence_labels"] = tf.zeros_like(result["input_ids"][:, 0])
    return result


def document_ids(manifest: Manifest, input_ids: tf.Tensor) -> tf.Tensor:
    """int32 [b, S]: 1, 2, ... for the runs of text that [SEP] ends; 0 is padding.

    Derived, not stored: a text never holds [SEP], and masking never touches one.
    """
    ends = tf.cast(tf.equal(input_ids, manifest.special_ids["sep"]), tf.int32)
    runs = tf.cumsum(ends, axis=1, exclusive=True) + 1
    return tf.where(tf.equal(input_ids, manifest.pad_id), 0, runs)


def _decoded(values: tf.Tensor, kind: tf.DType, length: int) -> tf.Tensor:
    # decode_raw is a copy here: every record of a batch has the same length, and one that has not
    # fails the op, which is what it should do.
    decoded = tf.io.decode_raw(values, kind)
    return tf.ensure_shape(decoded, [None, length])
