"""Measures how much time saving costs: BERT-base's whole state, saved as `pretrain` saves it.

    .venv/bin/python -m scripts.bench_checkpoint [--saves 3] [--directory DIR]

Fills a session with the variables of the default config (12 layers of 768: parameters and both Adam
slots), saves them several times through the same code as `pretrain`, and prints how long the step
waits, how long the background takes, and the share of time lost at one checkpoint a minute. Needs
4 GB of memory and 4 GB of disk; takes about a minute.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from bigbird_ja.data import prepare_tensorflow
from bigbird_ja.process import console
from bigbird_ja.settings.schema import Config
from testkit.configs import fitted, with_data

prepare_tensorflow(os.environ)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    config = fitted()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as directory:
        size, waits, works = measure(config, directory, options.saves)
    wait, work = statistics.median(waits), statistics.median(works)
    print(f"state {console.human_bytes(size)}: the step waits {wait:.3f} s per checkpoint;")
    print(f"the background takes {work:.2f} s ({console.human_bytes(size / work)}/s) to disk")
    print(f"share of time lost at one checkpoint a minute: {wait / 60:.2%}")


def measure(config: Config, directory: str, saves: int) -> tuple[int, list[float], list[float]]:
    """Return bytes of one checkpoint; seconds that the step waited and that the background took."""
    import tensorflow as tf

    from bigbird_ja.run.checkpoints import CheckpointStore, Meta
    from bigbird_ja.storage.ownership import Owned
    from bigbird_ja.train import Dependencies, SingleProcess
    from bigbird_ja.train.beside import CheckpointSaver

    waits: list[float] = []
    works: list[float] = []
    scratch = os.path.join(directory, ".scratch")
    os.mkdir(scratch)
    store = CheckpointStore(directory, owned=Owned.create(directory, "run"))
    job: Any = SimpleNamespace(config=config, deps=Dependencies(), pod=SingleProcess())
    saver = CheckpointSaver(
        job, store, scratch, lambda: None, lambda step, seconds: works.append(seconds)
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = _variables(config)
        session.run([variable.initializer for variable in variables.values()])
        for step in range(1, saves + 1):
            meta = Meta(step, "", "", 0.0, 0, 0, time.time(), next_batch=step, global_batch_size=1)
            start = time.monotonic()
            saver.save(meta, lambda: _snapshot(session, variables))
            waits.append(time.monotonic() - start)
            saver.wait()
    files = store.read_meta(saves).files
    return sum(file.bytes for file in files.values()), waits, works


def _variables(config: Config) -> dict[str, Any]:
    import tensorflow as tf

    from bigbird_ja.model.params import parameter_specs

    return {
        name + suffix: tf.compat.v1.get_variable(
            name + suffix,
            spec.shape,
            initializer=tf.compat.v1.random_normal_initializer(),
            use_resource=True,
        )
        for suffix in ("", "/adam_m", "/adam_v")
        for name, spec in parameter_specs(*with_data(config)).items()
    }


def _snapshot(session: Any, variables: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    values = session.run(variables)
    return lambda: values


if __name__ == "__main__":
    main()
