"""What the engine of JAX's runtime costs around its step, and how fast it starts again.

    .venv/bin/python -m scripts.bench_engine [--steps 12] [--config small-1024] [--work_dir DIR]

1. The compiled step alone, on one batch that lies on the device, against the whole of `pretrain`
   with input, a line of metrics per step and three saves: the share of time that the step alone
   would not need. Alone, whole, alone again, so that a machine that gets busier is seen. By the
   clock and by processor time; the second is the one to read where other programs run too.
2. Both engines on the same data, in turns, in one process (where TensorFlow is 2.15).
3. From the start of a process to its next finished step, of a run that was killed: with the
   compiled programs that the run keeps, and without.

Needs some minutes at the sizes of small-1024 on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bigbird_ja import tensorflow_env

tensorflow_env.prepare(os.environ)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bigbird_ja import config as config_lib  # noqa: E402
from bigbird_ja.config import Config  # noqa: E402
from bigbird_ja.data import manifest as manifest_lib  # noqa: E402
from testkit import synthetic  # noqa: E402

BATCH = 2  # sequences: a step of small-1024 then takes seconds on two cores
_PATIENCE = 900.0


class Cost(NamedTuple):
    """Of one step."""

    wall: float  # seconds by the clock
    cpu: float  # seconds of all this process's threads

    def over(self, other: Cost) -> tuple[float, float]:
        """The share of it that `other` would not need."""
        return 1 - other.wall / self.wall, 1 - other.cpu / self.cpu


class Clock:
    """Marks the ends of steps."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []

    def mark(self) -> None:
        """A step has ended."""
        self._marks.append((time.perf_counter(), time.process_time()))

    def per_step(self, first: int) -> Cost:
        """The mean from the mark numbered `first` to the last one."""
        (wall, cpu), (last_wall, last_cpu) = self._marks[first], self._marks[-1]
        count = len(self._marks) - 1 - first
        return Cost((last_wall - wall) / count, (last_cpu - cpu) / count)


def main() -> int:
    """Measures all three and prints them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="small-1024")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--work_dir", type=Path, default=Path("out/engine"))
    options = parser.parse_args()
    shutil.rmtree(options.work_dir / "bench", ignore_errors=True)
    place = options.work_dir / "bench"
    settings = [
        f"training.global_batch_size={BATCH}", f"training.num_train_steps={options.steps}",
        "training.log_every_steps=1", f"checkpoints.save_every_steps={options.steps // 3 or 1}",
        "checkpoints.save_every_minutes=0", "training.warmup_steps=0", *options.set,
    ]  # fmt: skip
    config = _config(options.config, settings, place / "data")
    result = {
        "around_the_step": around(config, place),
        "engines": engines(config, place),
        "restart": restart(options.config, settings, place),
    }
    print(json.dumps(result))
    return 0


def _config(preset: str, settings: list[str], data: Path) -> Config:
    """The config, and data of its sizes made from random tokens."""
    asked = config_lib.without_data_set(config_lib.resolve(preset, settings)[0])
    manifest = synthetic.write(
        data, (60, 60), (4,), seq_length=asked.data.seq_length or 0,
        max_predictions=asked.data.max_predictions_per_seq or 0,
        vocab_size=asked.model.vocab_size or 0,
    )  # fmt: skip
    (data / "tokenizer.model").write_bytes(b"not read by training")
    return config_lib.with_data_set(config_lib.resolve(preset, settings)[0], manifest.fixed())


def around(config: Config, place: Path) -> dict[str, float]:
    """Step alone, `pretrain`, step alone."""
    before, whole, after = alone(config, place), whole_run(config, place), alone(config, place)
    bare = Cost((before.wall + after.wall) / 2, (before.cpu + after.cpu) / 2)
    wall, cpu = whole.over(bare)
    print(f"a step alone: {bare.wall:.3f} s ({before.wall:.3f} before, {after.wall:.3f} after),")
    print(
        f"{bare.cpu:.3f} s of processor time; in `pretrain` {whole.wall:.3f} s, {whole.cpu:.3f} s:"
    )
    print(f"{wall:.1%} of the time, {cpu:.1%} of processor time goes to what is around the step\n")
    return {"step_seconds": bare.wall, "share_of_time": wall, "share_of_processor_time": cpu}


def alone(config: Config, place: Path) -> Cost:
    """The compiled step on one batch, a few steps in flight as in training."""
    import jax

    engine = _pjrt(config, place)
    engine.begin()
    try:
        clock, waiting = Clock(), []
        batch = next(engine._input)
        for _ in range(config.training.num_train_steps):
            engine._state, notes = engine._step(engine._state, batch)
            waiting.append(notes)
            if len(waiting) > 2:
                jax.block_until_ready(waiting.pop(0))
                clock.mark()
        for notes in waiting:
            jax.block_until_ready(notes)
            clock.mark()
    finally:
        engine.close()
    return clock.per_step(1)


def whole_run(config: Config, place: Path) -> Cost:
    """The same through `pretrain`: input, logging and saving beside the steps."""
    from bigbird_ja.train import run
    from bigbird_ja.train.engines import choice
    from bigbird_ja.train.request import Request, Surroundings
    from bigbird_ja.train.signals import StopRequest

    clock = Clock()

    def mark(phase: str) -> None:
        if phase == "step":
            clock.mark()

    def quiet(text: str) -> None: ...

    request = Request(
        config, manifest_lib.load(str(place / "data")), str(place / "data"), str(place / "model"),
        choice.choose("pjrt", False, config), surroundings=Surroundings(log=quiet, mark=mark),
    )  # fmt: skip
    with StopRequest(quiet, quiet) as stop:
        run.pretrain(request, stop)
    return clock.per_step(2)  # the first mark is before the first step


def engines(config: Config, place: Path) -> dict[str, float] | None:
    """Both engines in turns of some steps."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        print("TPUEstimator is not here (TensorFlow 2.15): no comparison\n")
        return None
    from bigbird_ja.train.engines.estimator import EstimatorEngine

    steps, turns = config.training.num_train_steps, 3
    scratch = place / "scratch"
    scratch.mkdir()
    other = EstimatorEngine(
        config, _first(config), _batches(config, place), 1, str(scratch), use_tpu=False
    )
    found: dict[str, list[float]] = {"pjrt": [], "estimator": []}
    under_test: dict[str, Any] = {"pjrt": _pjrt(config, place), "estimator": other}
    try:
        for engine in under_test.values():
            engine.begin()
            _advance(engine, 0, 2)
        for turn in range(turns):
            start, end = (2 + (steps - 2) * n // turns for n in (turn, turn + 1))
            for name, engine in under_test.items():
                before = time.perf_counter()
                _advance(engine, start, end)
                found[name].append((time.perf_counter() - before) / (end - start))
    finally:
        for engine in under_test.values():
            engine.close()
    ours, theirs = (sum(found[name]) / turns for name in ("pjrt", "estimator"))
    print(f"a step under pjrt {ours:.3f} s, under the estimator {theirs:.3f} s:")
    print(f"pjrt has {theirs / ours:.2f} x the estimator's rate on this CPU\n")
    return {"pjrt_seconds": ours, "estimator_seconds": theirs, "ratio": theirs / ours}


def _advance(engine: Any, start: int, end: int) -> None:
    while start < end:
        start = engine.advance(end).step
    engine.settle()


def _first(config: Config) -> Callable[[], Any]:
    from bigbird_ja.train.state import first_state

    return lambda: first_state(config, None, None)


def _batches(config: Config, place: Path) -> Callable[[int, int], Any]:
    from bigbird_ja.data import pipeline

    data = str(place / "data")
    return lambda host, count: pipeline.batches(
        manifest_lib.load(data), data, seed=config.data.seed,
        global_batch_size=config.training.global_batch_size,
        shuffle_window=config.data.shuffle_window, num_hosts=count, host_index=host,
    )  # fmt: skip


def _pjrt(config: Config, place: Path) -> Any:
    from bigbird_ja.train.engines import devices
    from bigbird_ja.train.engines.pjrt import PjrtEngine

    return PjrtEngine(config, _first(config), _batches(config, place), devices.find(False))


def restart(preset: str, settings: list[str], place: Path) -> dict[str, float | None]:
    """Seconds from a killed run's next start to its next finished step."""
    model = place / "restarted"
    command = [
        sys.executable, "-m", "bigbird_ja", "pretrain", "--engine=pjrt", "--config", preset,
        f"--data_dir={place / 'data'}", f"--model_dir={model}",
        *(f"--set={text}" for text in settings), "--set=training.num_train_steps=100000",
        "--set=checkpoints.save_every_steps=1",
    ]  # fmt: skip
    first = _until_a_step(command, model)
    kept = any(path.name.endswith("-cache") for path in model.glob("compiled/**/*"))
    again = _until_a_step(command, model) if kept else None
    shutil.rmtree(model / "compiled", ignore_errors=True)
    without = _until_a_step(command, model)
    print(f"from the start of a process to its first finished step: {first:.1f} s for a new run,")
    if again is None:
        print(f"{without:.1f} s for a killed one; programs for the CPU are not kept under this jax")
    else:
        print(f"{again:.1f} s for a killed one, {without:.1f} s without its compiled programs")
    return {"new": first, "with_programs": again, "without_programs": without}


def _until_a_step(command: list[str], model: Path) -> float:
    """Starts a run, kills it once a step is logged and a checkpoint is there; the seconds to that
    step."""
    metrics = model / "metrics.jsonl"
    before = metrics.read_bytes() if metrics.exists() else b""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not metrics.exists() or len(metrics.read_bytes()) <= len(before):
            _check_alive(process, start)
            time.sleep(0.02)
        found = time.perf_counter() - start
        while not (model / "checkpoint").exists():
            _check_alive(process, start)
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    return found


def _check_alive(process: subprocess.Popen[bytes], start: float) -> None:
    if process.poll() is not None or time.perf_counter() - start > _PATIENCE:
        raise SystemExit("pretrain trained no step: see its messages by running it yourself")


if __name__ == "__main__":
    sys.exit(main())
