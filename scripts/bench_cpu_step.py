"""Times the train step on a CPU, block-sparse against two plain ways of computing the same thing.

    .venv/bin/python -m scripts.bench_cpu_step [--lengths 1024 4096] [--jit]

- dense: all scores, masked to the same pattern (`attention_type=simulated_sparse`);
- gathered: each query block's key blocks gathered and concatenated, TensorFlow's own gradient.

Prints the CPU seconds of a step (of all threads: what other programs do to the machine matters
less), after one step of warming up, and the ratio to block-sparse. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from unittest import mock

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from bigbird_ja.model import pattern  # noqa: E402
from bigbird_ja.model.params import initial_parameters  # noqa: E402
from bigbird_ja.settings.resolve import complete_config, resolve_config  # noqa: E402
from bigbird_ja.settings.schema import Config  # noqa: E402
from bigbird_ja.train.step import initial_slots, train_step  # noqa: E402

_SIZES = {
    "tokenize.vocab_size": 8000,
    "model.hidden_size": 256,
    "model.num_layers": 2,
    "model.num_attention_heads": 4,
    "model.intermediate_size": 1024,
    "training.dtype": "float32",
    "make_data.max_predictions_per_seq": 150,
}


def main() -> None:
    """Prints one line per length, pattern and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    args = parser.parse_args()
    for length in args.lengths:
        for random_pattern in ("rolled", "independent"):
            base = _time(_config(length, "block_sparse", random_pattern), args)
            _report(length, random_pattern, "block-sparse", base, base)
            seconds = _time(_config(length, "simulated_sparse", random_pattern), args)
            _report(length, random_pattern, "dense", seconds, base)
            with mock.patch("bigbird_ja.model.attention.attention", _gathered):
                seconds = _time(_config(length, "simulated_sparse", random_pattern), args)
            _report(length, random_pattern, "gathered", seconds, base)


def _report(length: int, random_pattern: str, way: str, seconds: float, base: float) -> None:
    line = f"{length:6d} tokens  {random_pattern:12s} {way:13s} {seconds:7.2f} CPU s"
    print(f"{line}   {seconds / base:5.2f} x", flush=True)


def _config(length: int, attention_type: str, random_pattern: str) -> Config:
    sets = _SIZES | {
        "make_data.seq_length": length,
        "model.attention_type": attention_type,
        "model.random_pattern": random_pattern,
    }
    config, _ = resolve_config(None, [f"{key}={value}" for key, value in sets.items()])
    return complete_config(config)


def _batch(config: Config, size: int = 1) -> dict[str, tf.Tensor]:
    random = np.random.default_rng(0)
    length, predictions = config.make_data.seq_length, config.make_data.max_predictions_per_seq
    assert length and predictions and config.model.vocab_size
    ids = random.integers(7, config.model.vocab_size, (size, length))
    positions = np.sort(random.integers(0, length, (size, predictions)), axis=1)
    return {
        "input_ids": tf.constant(ids, tf.int32),
        "segment_ids": tf.zeros([size, length], tf.int32),
        "masked_lm_positions": tf.constant(positions, tf.int32),
        "masked_lm_ids": tf.constant(np.take_along_axis(ids, positions, 1), tf.int32),
        "masked_lm_weights": tf.ones([size, predictions]),
    }


def _time(config: Config, args: argparse.Namespace) -> float:
    params = {n: tf.constant(v) for n, v in initial_parameters(config, seed=0).items()}
    batch = _batch(config)

    def step(params: dict, slots: dict, count: tf.Tensor) -> tuple:
        return train_step(config, params, slots, count, batch)

    run = tf.function(step, jit_compile=args.jit, autograph=False)
    return _best(lambda: run(params, initial_slots(params), tf.constant(0, tf.int64)), args.steps)


def _best(run: Callable[[], object], steps: int) -> float:
    run()
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _gathered(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    document_ids: tf.Tensor | None,
    config: Config,
    layer: int,
) -> tf.Tensor:
    """What `attention` computes, the plain way: gather the key blocks of each row, concatenate."""
    assert document_ids is None
    block = config.model.block_size
    batch, length, heads, size = (int(n) for n in query.shape)
    mask = pattern.block_mask(config, layer, length)
    inner = [[np.flatnonzero(row) for row in head[1:-1]] for head in mask]
    most = max(len(row) for head in inner for row in head)
    # Rows beside an end have a block less: theirs is filled up with one more, hidden.
    index = np.array([[np.resize(row, most) for row in head] for head in inner])
    real = np.array([[np.arange(most) < len(row) for row in head] for head in inner])
    bias = np.where(real, 0.0, -1e9).astype(np.float32).repeat(block, axis=-1)

    def blocks(x: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(x, [batch, -1, block, heads, size]), [0, 3, 1, 2, 4])

    def take(x: tf.Tensor) -> tf.Tensor:
        taken = tf.stack(
            [tf.gather(x[:, head], index[head], axis=1) for head in range(heads)], axis=1
        )
        return tf.reshape(taken, [batch, heads, length // block - 2, most * block, x.shape[-1]])

    q, k, v = blocks(query), blocks(key), blocks(value)
    padding = (1.0 - tf.reshape(input_mask, [batch, 1, -1, block, 1])) * -1e9
    hidden = take(tf.broadcast_to(padding, [batch, heads, length // block, block, 1]))[..., 0]
    scores = tf.einsum("bhnqd,bhnkd->bhnqk", q[:, :, 1:-1], take(k)) * size**-0.5
    weights = tf.nn.softmax(scores + (hidden + bias)[:, :, :, None], axis=-1)
    middle = tf.einsum("bhnqk,bhnkd->bhnqd", weights, take(v))
    ends = tf.concat([q[:, :, :1], q[:, :, -1:]], axis=2)
    scores = tf.einsum("bhnqd,bhmkd->bhnqmk", ends, k) * size**-0.5
    scores = tf.reshape(scores, [batch, heads, 2, block, length])
    weights = tf.nn.softmax(scores + tf.reshape(padding, [batch, 1, 1, 1, length]), axis=-1)
    flat = tf.reshape(v, [batch, heads, length, size])
    ends = tf.einsum("bhnqk,bhkd->bhnqd", weights, flat)
    context = tf.concat([ends[:, :, :1], middle, ends[:, :, 1:]], axis=2)
    return tf.reshape(tf.transpose(context, [0, 2, 3, 1, 4]), query.shape)


if __name__ == "__main__":
    main()
