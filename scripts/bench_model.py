"""The train step on fixed data, with no input pipeline: `make bench-model`.

The same compiled step as `pretrain`'s, on one random batch over and over, next to the same step fed
by the real pipeline; their ratio says whether the input or the step is the limit on this machine.

    python -m scripts.bench_model --config tiny-cpu --steps 50
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

import numpy as np  # noqa: E402

from bigbird_ja.data import manifest as manifest_lib  # noqa: E402
from bigbird_ja.process import console  # noqa: E402
from bigbird_ja.settings.resolve import complete_config, preset_path, resolve_config  # noqa: E402
from bigbird_ja.settings.schema import Config  # noqa: E402
from bigbird_ja.settings.values import train_predictions  # noqa: E402
from scripts.learning import TINY, Batch, generated_data, train, training_batches  # noqa: E402


def fixed_batch(config: Config, seed: int) -> Batch:
    """One batch of random ids of the config's shapes, every prediction counted."""
    random = np.random.default_rng(seed)
    rows, length = config.training.global_batch_size, config.make_data.seq_length
    vocab_size, predictions = config.model.vocab_size or 0, train_predictions(config)
    chosen = [random.permutation(length)[:predictions] for _ in range(rows)]
    return {
        "input_ids": random.integers(11, vocab_size, (rows, length), np.int32),
        "segment_ids": np.zeros((rows, length), np.int32),
        "document_ids": np.ones((rows, length), np.int32),
        "masked_lm_positions": np.sort(np.stack(chosen), axis=1).astype(np.int32),
        "masked_lm_ids": random.integers(11, vocab_size, (rows, predictions), np.int32),
        "masked_lm_weights": np.ones((rows, predictions), np.float32),
        "next_sentence_labels": np.zeros([rows], np.int32),
    }


def seconds_per_step(config: Config, batches: Iterator[Batch]) -> float:
    """The median over all steps but the first ones, which compile and fill buffers."""
    times = [time.perf_counter()]
    train(config, batches, lambda *_: times.append(time.perf_counter()))
    return float(np.median(np.diff(times)[3:]))


def main() -> int:
    """Times both and prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=preset_path("tiny-cpu"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--work_dir", default="out/model")
    options = parser.parse_args()
    data_dir = generated_data(options.work_dir, TINY)
    config, _ = resolve_config(options.config, [f"training.num_train_steps={options.steps}"])
    config = complete_config(config, (), manifest_lib.load(data_dir).as_settings())
    fixed = seconds_per_step(config, itertools.repeat(fixed_batch(config, seed=1)))
    fed = seconds_per_step(config, training_batches(config, data_dir))
    tokens = config.training.global_batch_size * config.make_data.seq_length
    rows = [("fixed data", fixed * 1e3, tokens / fixed), ("real pipeline", fed * 1e3, tokens / fed)]
    print(console.table(rows, ("input", "ms per step", "tokens/s")))
    limit = "the input" if fed > 1.1 * fixed else "the step"
    print(f"with the pipeline a step takes {fed / fixed:.2f} x as long: the limit here is {limit}")
    print(json.dumps({"fixed_ms": fixed * 1e3, "pipeline_ms": fed * 1e3, "ratio": fed / fixed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
