"""Measures how many sequences a second the input pipeline delivers, and its stages.

    .venv/bin/python -m scripts.bench_pipeline DATA_DIR

Each stage is measured with all before it; the difference is its own cost. "cpu" is the processor
time of the whole process, which tells more than the clock on a machine that is busy otherwise.
Bounds: 3,200 sequences of 4,096 per second with dynamic masks on two cores (fifty times what a v3-8
takes), 15,700 with static ones.
"""

import os
import sys
import time
from collections.abc import Iterator

from bigbird_ja.cli import prepare_tensorflow
from bigbird_ja.process.console import human_bytes, table

BATCH, SECONDS, THREADS = 16, 8.0, 2


def measure(data_dir: str) -> None:
    """Print the stages."""
    prepare_tensorflow(os.environ)
    import resource

    import tensorflow as tf

    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import pipeline, tfrecords
    from bigbird_ja.settings.resolve import resolve_config

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    manifest = manifest_lib.load(data_dir)
    config, _ = resolve_config(sets=[f"training.global_batch_size={BATCH}"])
    read = pipeline.record_batches(config, manifest, data_dir)
    parse = tfrecords.parse_dynamic if manifest.masking == "dynamic" else tfrecords.parse_static
    parsed = read.map(
        lambda s, epoch, record: parse(manifest, s), num_parallel_calls=THREADS, deterministic=True
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
        options.threading.private_threadpool_size = THREADS
        iterator = iter(dataset.with_options(options))
        measured[name] = _rate(iterator)
        # Of the whole pipeline, which runs first: afterwards two of them may be in memory.
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        del iterator
    rows, before = [], 0.0
    for name in stages:
        rate, cpu = measured[name]
        rows.append([name, round(rate), round(cpu, 1), round(cpu - before, 1), round(2e6 / cpu)])
        before = cpu
    header = ["stage", "sequences/s", "cpu us each", "of it its own", "at 2 idle cores"]
    print(f"{data_dir}: {manifest.masking} masks, {manifest.seq_length} tokens, batch {BATCH}")
    print(table(rows, header))
    print(f"memory at most {human_bytes(peak)}, TensorFlow included")


def _rate(iterator: Iterator[object]) -> tuple[float, float]:
    """Return sequences per second, and microseconds of processor time for each."""
    for _ in range(max(1, 256 // BATCH)):
        next(iterator)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < SECONDS:
        for _ in range(8):
            next(iterator)
        count += 8 * BATCH
    wall = time.perf_counter() - began
    return count / wall, (time.process_time() - cpu) / count * 1e6


if __name__ == "__main__":
    measure(sys.argv[1])
