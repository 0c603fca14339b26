"""Small data sets of random tokens, which need no corpus and no tokenizer."""

import io

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import masking, order, tfrecords

NAMES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
NAMES += ("article", "section", "paragraph", "newline")
SPECIAL_IDS = {name: i for i, name in enumerate(NAMES)}


def write(directory, train_counts=(4, 4, 3, 3), eval_counts=(3,), **changed):
    """Write a data set in which record i begins with [CLS] and three tokens that encode i.

    Args:
        directory: folder of the data set.
        train_counts: number of records of each training shard.
        eval_counts: number of records of each held-out shard.
        changed: fields of the manifest. Other fields get the defaults of this function.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = {
        **{"seq_length": 64, "max_predictions_per_seq": 12, "masked_lm_prob": 0.15, "nsp": False},
        **{"masking": "dynamic", "mask_unit": "whole_word", "word_boundaries": "script"},
        **{"vocab_size": 200, "special_ids": SPECIAL_IDS, "tokenizer_sha256": "", "corpus": ""},
        **{"dupe_factor": 1, "input_mask": False, "eval_fraction": 0.1, "num_shards": 0, "seed": 0},
        "num_readers": order.choose_num_readers(train_counts),
        **changed,
    }
    rng = np.random.default_rng(values["seed"])
    for split, counts in (("train", train_counts), ("eval", eval_counts)):
        tokens, starts = random_records(
            rng, sum(counts), values["seq_length"], values["vocab_size"]
        )
        encoded = _encode(tokens, starts, values)
        shards, at = [], 0
        for i, count in enumerate(counts):
            name = f"{split}-{i:05d}-of-{len(counts):05d}.tfrecord"
            data = tfrecords.frame_records(encoded[at : at + count])
            (directory / name).write_bytes(data)
            summed = tfrecords.Summed(io.BytesIO())
            summed.write(data)
            shards.append(manifest_lib.Shard(name, count, **summed.compute_sums()))
            at += count
        used = int((tokens != 0).sum())
        values[split] = manifest_lib.Split(
            at, used, at, used, at * values["max_predictions_per_seq"]
        )
        values[f"{split}_shards"] = tuple(shards)
    result = manifest_lib.Manifest(**values)
    save(result, str(directory))
    return result


def save(manifest, directory):
    """Write the manifest of a data set to `manifest.json` in the folder."""
    path = storage.join(directory, manifest_lib.FILE_NAME)
    storage.write_text(path, manifest_lib.to_json(manifest))


def random_records(rng, count, seq_length, vocab_size):
    """Draw records that contain two documents and padding.

    Returns:
        Token ids int32 [count, seq_length], and word starts bool [count, seq_length].
    """
    tokens = rng.integers(len(NAMES), vocab_size, (count, seq_length)).astype(np.int32)
    ids = np.arange(count)
    base = vocab_size - len(NAMES)
    for digit in range(3):
        tokens[:, 1 + digit] = len(NAMES) + ids // base**digit % base
    ends = rng.integers(seq_length // 2, seq_length, count)
    tokens[:, 0] = SPECIAL_IDS["cls"]
    tokens[:, seq_length // 3] = SPECIAL_IDS["sep"]
    tokens[ids, ends] = SPECIAL_IDS["sep"]
    tokens[np.arange(seq_length)[None, :] > ends[:, None]] = SPECIAL_IDS["pad"]
    starts = (rng.random(tokens.shape) < 0.5) & (tokens != 0)
    return tokens, starts


def record_number(tokens, vocab_size):
    """Decode the index of a record of `random_records` from its unmasked tokens."""
    base = vocab_size - len(NAMES)
    return sum(int(tokens[1 + digit] - len(NAMES)) * base**digit for digit in range(3))


def _encode(tokens, starts, values):
    count = len(tokens)
    middle = np.full(count, values["seq_length"] // 3 + 1)
    labels = np.arange(count) % 2
    if values["masking"] == "dynamic":
        packed = np.packbits(starts, axis=1)
        kind = tfrecords.choose_token_dtype(values["vocab_size"])
        nsp = {"segment_b": middle, "next_sentence_labels": labels} if values["nsp"] else {}
        return tfrecords.encode_dynamic(tokens.astype(kind), packed, nsp)
    wanted = [values[name] for name in ("max_predictions_per_seq", "masked_lm_prob")]
    ids = (values["vocab_size"], tuple(range(len(NAMES))), SPECIAL_IDS["mask"], 0)
    rule = masking.MaskingRule(*ids, *wanted, values["mask_unit"])
    features = masking.mask(tokens, starts, 0, np.arange(count), 0, rule)
    positions = np.arange(tokens.shape[1])[None, :]
    in_b = (positions >= middle[:, None]) & (tokens != 0)
    features["segment_ids"] = in_b.astype(np.int32) * values["nsp"]
    features["next_sentence_labels"] = labels[:, None] * values["nsp"]
    return tfrecords.encode_static(features)
