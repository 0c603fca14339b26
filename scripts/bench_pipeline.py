"""Measures how many sequences a second the input pipeline delivers, and its stages.

    .venv/bin/python -m scripts.bench_pipeline --data_dir=data [--batch_size=16] [--seconds=8]

Each stage is measured with all before it; the difference is its own cost. "cpu" is the processor
time of the whole process, which tells more than the clock on a machine that is busy otherwise.
Bounds: 3,200 sequences of 4,096 per second with dynamic masks on two cores (fifty times what a v3-8
takes), 15,700 with static ones.
"""

import os
import time
from collections.abc import Iterator

from absl import app, flags

from bigbird_ja.data import prepare_tensorflow
from bigbird_ja.process.console import human_bytes, table

_DATA_DIR = flags.DEFINE_string("data_dir", None, "What `make-data` wrote.", required=True)
_BATCH = flags.DEFINE_integer("batch_size", 16, "Sequences per batch.")
_SECONDS = flags.DEFINE_float("seconds", 8.0, "How long each stage runs.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of the pipeline.")


def measure(data_dir: str, batch_size: int, seconds: float, threads: int) -> None:
    """Print the stages."""
    prepare_tensorflow(os.environ)
    import resource

    import tensorflow as tf

    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import pipeline, tfrecords
    from bigbird_ja.settings.resolve import resolve_config

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    manifest = manifest_lib.load(data_dir)
    config, _ = resolve_config(sets=[f"training.global_batch_size={batch_size}"])
    read = pipeline.record_batches(config, manifest, data_dir)
    parse = tfrecords.parse_dynamic if manifest.masking == "dynamic" else tfrecords.parse_static
    parsed = read.map(
        lambda s, epoch, record: parse(manifest, s), num_parallel_calls=threads, deterministic=True
    )
    stages = {
        "read, check, shuffle, batch": read,
        "+ parse": parsed,
        "+ mask, document ids: all": pipeline.batches(config, manifest, data_dir),
    }
    measured = {}
    peak = 0
    for name, dataset in reversed(stages.items()):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        iterator = iter(dataset.with_options(options))
        measured[name] = _rate(iterator, batch_size, seconds)
        # Of the whole pipeline, which runs first: afterwards two of them may be in memory.
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        del iterator
    rows, before = [], 0.0
    for name in stages:
        rate, cpu = measured[name]
        rows.append([name, round(rate), round(cpu, 1), round(cpu - before, 1), round(2e6 / cpu)])
        before = cpu
    header = ["stage", "sequences/s", "cpu us each", "of it its own", "at 2 idle cores"]
    print(f"{data_dir}: {manifest.masking} masks, {manifest.seq_length} tokens, batch {batch_size}")
    print(table(rows, header))
    print(f"memory at most {human_bytes(peak)}, TensorFlow included")


def _rate(iterator: Iterator[object], batch_size: int, seconds: float) -> tuple[float, float]:
    """Return sequences per second, and microseconds of processor time for each."""
    for _ in range(max(1, 256 // batch_size)):
        next(iterator)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(8):
            next(iterator)
        count += 8 * batch_size
    wall = time.perf_counter() - began
    return count / wall, (time.process_time() - cpu) / count * 1e6


def main(_: list[str]) -> None:
    """Measures one data set."""
    measure(_DATA_DIR.value, _BATCH.value, _SECONDS.value, _THREADS.value)


if __name__ == "__main__":
    app.run(main)
