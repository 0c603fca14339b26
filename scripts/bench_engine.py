"""What an engine loses around the step, and how soon it trains again: `make bench-engine`.

  .venv/bin/python -m scripts.bench_engine --only loop,engines    # some ten minutes on two cores
  .venv-newest/bin/python -m scripts.bench_engine --only restart

Three ratios, on a CPU and on random records. The first two have the preset small-1024's model and
length, two sequences per step and float32 (a CPU's bfloat16 is emulated); the last has tiny-cpu's.

- loop: the share of time that the same compiled step, called over and over on one batch, would not
  need: what logging, saving and input cost. Both take turns within one run of `pretrain`, some
  steps each, so that other work on the machine slows both. A save is measured by the turns that
  have one, and counts as often as the preset saves. The time of all cores together is told beside
  the time that passes, because other work on the machine hardly changes it.
- engines: time per step under the engines pjrt and estimator, each a `pretrain` of its own, in
  turns. Where TensorFlow 2.15 is.
- restart: from the start of the process to the end of its first new step, with the programs that
  were kept beside the run and without, after a SIGKILL. With jax from 0.7 on, as older ones keep no
  CPU programs (docs/design/engines.md).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

from bigbird_ja.cli import main as cli  # noqa: E402
from bigbird_ja.process.console import log  # noqa: E402
from bigbird_ja.run import log as run_log  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
# Preset -> sequence length, predictions and pieces of its records.
RECORDS = {"small-1024": (1024, 154, 32_000), "tiny-cpu": (512, 77, 2_000)}
SETTINGS = (
    "training.global_batch_size=2", "training.dtype=float32", "tpu.num_cores=1",
    "training.log_every_steps=1", "training.warmup_steps=10", "checkpoints.save_every_minutes=0",
    "checkpoints.keep_last=1", "checkpoints.keep_every_steps=0",
)  # fmt: skip
PARTS = ("loop", "engines", "restart")
_WARM_UP = 4  # steps that are not measured
_FEWEST = 6  # steps that are: two of the pieces in which the engine pjrt tells of them
_PATIENCE = 1800.0  # seconds


@dataclass(frozen=True)
class Turn:
    """Some steps: `kind` is "bare", or the loop "plain" or with a "save" in it."""

    kind: str
    wall: float  # seconds per step
    cores: float  # of all cores together


@dataclass
class Turns:
    """Lets a run of `pretrain` and its bare step take turns, and measures both.

    Args:
        steps: of one turn.
        count: how many of the loop.
    """

    steps: int
    count: int
    done: list[Turn] = field(default_factory=list)
    engine: Any = None
    _marks: int = 0
    _has_saved: bool = False
    _began: tuple[float, float, int] | None = None

    def mark(self, phase: str) -> None:
        """Called by `pretrain`; between two steps with "step", and when it saves."""
        self._has_saved |= phase == "save"
        if phase != "step":
            return
        self._marks += 1
        if self._began is None:
            is_due = self._marks > _WARM_UP
        else:
            is_due = self.engine._dispatched - self._began[2] >= self.steps
        if is_due:
            self._turn()

    def _turn(self) -> None:
        """Ends the loop's turn, if there was one, and gives the bare step its own."""
        if len(self.done) > 2 * self.count:
            return
        engine = self.engine
        for _, notes in engine._under_way:
            notes.metrics.block_until_ready()
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()
        if self._began is not None:
            kind = "save" if self._has_saved else "plain"
            self._note(kind, self._began[:2], engine._dispatched - self._began[2])
        state, batch = engine._copy(engine._state), next(engine._input)
        began = time.perf_counter(), time.process_time()
        for _ in range(self.steps):
            state, notes = engine._step(state, batch)
        notes.metrics.block_until_ready()
        self._note("bare", began, self.steps)
        self._has_saved = False
        self._began = time.perf_counter(), time.process_time(), engine._dispatched

    def _note(self, kind: str, began: tuple[float, ...], steps: int) -> None:
        wall, cores = time.perf_counter() - began[0], time.process_time() - began[1]
        self.done.append(Turn(kind, wall / steps, cores / steps))

    def share(self, of: Callable[[Turn], float]) -> tuple[float, float]:
        """Of the loop's time, what the bare step does not need: without saves, a median over the
        turns, each beside the bare ones around it; and the seconds that a save adds."""
        plain, saves = [], []
        for before, turn, after in zip(self.done, self.done[1:], self.done[2:], strict=False):
            if turn.kind == "plain":
                plain.append(1 - (of(before) + of(after)) / 2 / of(turn))
        usual = statistics.median(plain)
        for before, turn, after in zip(self.done, self.done[1:], self.done[2:], strict=False):
            if turn.kind == "save":
                without = (of(before) + of(after)) / 2 / (1 - usual)
                saves.append((of(turn) - without) * self.steps)
        return usual, statistics.median(saves)


def measure_loop(preset: str, directory: Path, steps: int, count: int) -> dict[str, Any]:
    """The share of time around the step under the engine pjrt."""
    from bigbird_ja.commands import pretrain
    from bigbird_ja.settings.resolve import resolve_config
    from bigbird_ja.train.engines import choice
    from bigbird_ja.train.job import Dependencies

    turns, real = Turns(steps, count), choice.start

    def start(*given: Any) -> Any:
        turns.engine = real(*given)
        return turns.engine

    module: Any = choice
    module.start = start
    pretrain.run = lambda args: pretrain.run_with(args, Dependencies(mark=turns.mark))
    total = 2 * _WARM_UP + (count + 1) * (steps + 2)
    with contextlib.redirect_stdout(sys.stderr):
        arguments = _arguments(preset, directory, "loop", "pjrt", total, 2 * steps)
        if status := cli.run_command_line(["pretrain", *arguments]):
            raise SystemExit(f"pretrain ended with {status}")
    minutes = resolve_config(preset)[0].checkpoints.save_every_minutes
    found: dict[str, Any] = {}
    for name, of in (("time", lambda turn: turn.wall), ("cores' time", lambda turn: turn.cores)):
        usual, save = turns.share(of)
        share = usual + save / (60 * minutes)
        bare = statistics.median(of(turn) for turn in turns.done if turn.kind == "bare")
        print(
            f"loop: {share:.2%} of the {name} would not be needed: {usual:.2%} for logging each"
            f" step and input (a bare step takes {bare * 1e3:.0f} ms), and {save:.2f} s per"
            f" checkpoint, one in {minutes:g} minutes ({count} turns of {steps} steps)"
        )
        found |= {
            f"{name}: {key}": value
            for key, value in (
                ("share", share),
                ("usual", usual),
                ("save_s", save),
                ("bare_ms", bare * 1e3),
            )
        }
    return found


def measure_engines(preset: str, directory: Path, steps: int) -> dict[str, Any]:
    """Seconds per step of both engines."""
    found: dict[str, list[float]] = {"estimator": [], "pjrt": []}
    for number in range(2):
        for engine, seconds in found.items():
            log(f"engines: {engine}, {_WARM_UP + steps} steps ...")
            model = f"{engine}-{number}"
            arguments = _arguments(preset, directory, model, engine, _WARM_UP + steps)
            done = subprocess.run(_command(arguments), cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"--engine={engine} ended with {done.returncode}:\n{done.stderr}")
            seconds.append(seconds_per_step(run_log.read_metrics(str(directory / model))))
    pjrt, estimator = (statistics.mean(found[name]) for name in ("pjrt", "estimator"))
    print(
        f"engines: a step takes {pjrt * 1e3:.0f} ms under pjrt, {estimator * 1e3:.0f} ms under"
        f" estimator: {pjrt / estimator:.2f} x (two runs each, {steps} steps of it)"
    )
    return {"pjrt_ms": pjrt * 1e3, "estimator_ms": estimator * 1e3, "ratio": pjrt / estimator}


def seconds_per_step(metrics: Iterable[Mapping[str, Any]]) -> float:
    """Of a run that logged each step, after its warm-up.

    An engine that dispatches ahead tells of several steps at once, so only the last of them, which
    has just ended, says when.
    """
    ends = {round(line["time"], 1): line["step"] for line in list(metrics)[_WARM_UP - 1 :]}
    (began, first), *_, (ended, last) = ends.items()
    return float((ended - began) / (last - first))


def measure_restart(directory: Path, times: int) -> dict[str, Any]:
    """Seconds from a restart to its first new step, with kept programs and without."""
    arguments = _arguments("tiny-cpu", directory, "restart", "pjrt", 100_000, save_every=2)
    model = directory / "restart"
    first = _until_step(arguments, model, 3)
    found: dict[str, list[float]] = {"kept": [], "compiled anew": []}
    for _ in range(times):
        for name, seconds in found.items():
            if name != "kept":
                shutil.rmtree(model / "compiled")
            log(f"restart: {name} ...")
            seconds.append(_until_step(arguments, model, 3))
    kept, anew = (statistics.median(each) for each in found.values())
    print(
        f"restart: {kept:.1f} s from the start of the process to the end of the first new step with"
        f" kept programs, {anew:.1f} s without: {kept / anew:.2f} x (medians of {times}; the first"
        f" start took {first:.1f} s)"
    )
    return {"kept_s": kept, "anew_s": anew, "ratio": kept / anew, "first_s": first}


def _until_step(arguments: list[str], model: Path, more: int) -> float:
    """Starts `pretrain`, kills it once it has saved some steps more, and says how long its first
    new step took from the start of the process."""
    said, began = model.with_suffix(".err"), time.time()
    with open(said, "w", encoding="utf-8") as stream:
        running = subprocess.Popen(
            _command(arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stream
        )
    try:
        while True:
            new = [line for line in _lines(model) if line["time"] > began]
            if len(new) >= more and list(model.glob(f"model.ckpt-{new[-2]['step']}.json")):
                return float(new[0]["time"] - began)
            if running.poll() is not None or time.time() - began > _PATIENCE:
                raise SystemExit(f"pretrain ended with {running.poll()}:\n{said.read_text()}")
            time.sleep(0.05)
    finally:
        running.kill()
        running.wait()


def _lines(model: Path) -> list[Any]:
    with contextlib.suppress(Exception):  # while the file is being written
        return list(run_log.read_metrics(str(model)))
    return []


def _arguments(
    preset: str, directory: Path, model: str, engine: str, steps: int, save_every: int = 1_000_000
) -> list[str]:
    """Of `pretrain`: logs every step."""
    settings = [*SETTINGS, f"checkpoints.save_every_steps={save_every}"]
    return [
        "--config", preset, "--data_dir", str(directory / preset), "--engine", engine,
        "--model_dir", str(directory / model), "--num_train_steps", str(steps), "--json",
        *(f"--set={item}" for item in settings),
    ]  # fmt: skip


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "bigbird_ja", "pretrain", *arguments]


def _can_run(part: str) -> bool:
    """Says why a part is left out here."""
    import jax

    from bigbird_ja.train.engines.choice import has_estimator

    if part == "engines" and not has_estimator():
        log("engines: left out: no TPUEstimator here; run it with .venv")
        return False
    if part == "restart" and jax.__version_info__ < (0, 7):
        log(f"restart: left out: jax {jax.__version__} keeps no CPU programs; run .venv-newest")
        return False
    return True


def main() -> int:
    """Measures, and prints a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="of: " + ", ".join(PARTS))
    parser.add_argument("--config", default="small-1024", choices=RECORDS, help="of loop, engines")
    parser.add_argument("--steps", type=int, default=8, help="of a turn, and of an engine's run")
    parser.add_argument("--turns", type=int, default=10, help="of the loop, and of its bare step")
    parser.add_argument("--restarts", type=int, default=3, help="of each kind")
    parser.add_argument("--json", action="store_true", help="the figures in a last line")
    options = parser.parse_args()
    if options.steps < _FEWEST:
        parser.error(f"--steps={options.steps}: an engine tells of several at once, so {_FEWEST}")
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--only={options.only}: {', '.join(sorted(unknown))} is none of {PARTS}")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        _write_data(directory)
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "engines": lambda: measure_engines(options.config, directory, options.steps),
            "restart": lambda: measure_restart(directory, options.restarts),
            "loop": lambda: measure_loop(options.config, directory, options.steps, options.turns),
        }
        found = {part: measures[part]() for part in measures if part in wanted and _can_run(part)}
    if options.json:
        print(json.dumps(found))
    return 0


def _write_data(directory: Path) -> None:
    from testkit import synthetic

    for preset, (length, predictions, pieces) in RECORDS.items():
        data, counts = directory / preset, (256,) * 4
        synthetic.write(
            data, counts, seq_length=length, max_predictions=predictions, vocab_size=pieces
        )
        (data / "tokenizer.model").write_bytes(b"not read by training")


if __name__ == "__main__":
    sys.exit(main())
