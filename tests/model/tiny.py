"""Configs and batches small enough for tests of the model."""

import numpy as np
import tensorflow as tf

from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.variants import OPTIONS
from bigbird_ja.train.optimizer import list_slot_parameters
from testkit.configs import resolve_config, with_data

_TINY = {
    "tokenize.vocab_size": 60,
    "make_data.max_predictions_per_seq": 8,
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 48,
    "model.block_size": 8,
    "training.dtype": "float32",
    "training.global_batch_size": 4,
    "training.warmup_steps": 0,
    "training.learning_rate": 1e-3,
}


def tiny_config(seq_length=96, **sets):
    """Return a small config. `sets` contains other settings, as `**{"section.key": value}`."""
    values = _TINY | {"make_data.seq_length": max(8, seq_length)} | sets
    if "model.architecture" in sets:
        del values["model.block_size"]
    elif values.get("model.attention_type") == "original_full":
        # Settings of blocks are refused with full attention.
        blocks = [k for k in values if "model.attention_type" in OPTIONS[k].only_with]
        values = {k: v for k, v in values.items() if k not in blocks}
    config, _ = resolve_config(None, [f"{key}={value}" for key, value in values.items()])
    return fit_to_data(*with_data(config))


def initial_slots(config, params):
    """Return the optimizer's slots before the first step, which are zero."""
    return {
        slot: {name: tf.zeros_like(params[name]) for name in names}
        for slot, names in list_slot_parameters(*with_data(config)).items()
    }


def tiny_batch(config, batch_size=4, seed=0):
    """Draw random records. The first record and its predictions end in padding."""
    random = np.random.default_rng(seed)
    length, predictions = config.make_data.seq_length, config.make_data.max_predictions_per_seq
    vocab_size = config.model.vocab_size
    assert length and predictions and vocab_size
    shape = (batch_size, length)
    input_ids = random.integers(7, vocab_size, shape)
    input_ids[0, length // 2 :] = 0
    weights = np.ones((batch_size, predictions), np.float32)
    weights[0, predictions // 2 :] = 0
    positions = np.stack(
        [np.sort(random.permutation(length // 2)[:predictions]) for _ in range(batch_size)]
    )
    documents = np.sort(random.integers(1, 4, shape), axis=1)
    arrays = {
        "input_ids": input_ids,
        "segment_ids": np.sort(random.integers(0, 2, shape), axis=1),
        "document_ids": np.where(input_ids > 0, documents, 0),
        "masked_lm_positions": positions,
        "masked_lm_ids": random.integers(7, vocab_size, (batch_size, predictions)),
        "next_sentence_labels": random.integers(0, 2, batch_size),
    }
    batch = {name: tf.constant(array, tf.int32) for name, array in arrays.items()}
    return batch | {"masked_lm_weights": tf.constant(weights)}
