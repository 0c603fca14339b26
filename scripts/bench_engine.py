"""Measures what an engine costs beside the step, and how soon it trains again: `make bench-engine`.

    python -m scripts.bench_engine [--only loop,engines,restart,save] [--rev COMMIT]

On a CPU and on random records, by `pretrain` itself in processes of its own, in turns:

- loop: seconds per step with every step logged and a checkpoint every few steps, against the same
  run without: what a checkpoint costs.
- engines: seconds per step under the engines pjrt and estimator (where TensorFlow is 2.15).
- restart: from the start of the process to its first new step, with the programs kept beside the
  run and without, after a SIGKILL (jax from 0.7 on; older ones keep no CPU programs).
- save (`make bench-checkpoint`): parameters and both Adam slots of the default config, saved as
  `pretrain` saves them: how long the step waits and the background takes.

With `--rev` only the start-up is timed, against that commit's, in pairs: `--help`, and `pretrain`
of the preset tiny-cpu to its first step, each on data that its own commands made.
"""

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bigbird_ja.cli import prepare_tensorflow
from bigbird_ja.process import console
from bigbird_ja.process.console import log, table
from bigbird_ja.run.log import read_metrics
from scripts import revisions
from testkit import ROOT, synthetic
from testkit.configs import fitted, with_data

PROGRAM = (sys.executable, "-m", "bigbird_ja")
PRESET = "small-1024"
RECORDS: dict[str, Any] = {"seq_length": 1024, "max_predictions_per_seq": 154, "vocab_size": 32_000}
SETTINGS = {
    "training.global_batch_size": 2,
    "training.dtype": "float32",
    "training.warmup_steps": 10,
    "checkpoints.save_every_minutes": 0,
    "checkpoints.keep_last": 1,
    "checkpoints.keep_every_steps": 0,
}
RARELY = {"training.log_every_steps": 1, "checkpoints.save_every_steps": 1_000_000}
WARM_UP = 5  # steps that are not measured


def command(
    work: Path, model: str, steps: int, sets: Mapping[str, object], engine: str = "auto"
) -> list[str]:
    """Return a line that trains on the random records."""
    flags = {"config": PRESET, "engine": engine, "data_dir": work / "data"}
    flags |= {"model_dir": work / model, "num_train_steps": steps}
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += [f"--set={key}={value}" for key, value in {**SETTINGS, **sets}.items()]
    return [*PROGRAM, "pretrain", *words]


def seconds_per_step(
    work: Path, model: str, steps: int, sets: Mapping[str, object], engine: str = "auto"
) -> float:
    """Time a run of its own after its warm-up; logged steps are dated as they end."""
    line = command(work, model, WARM_UP + steps, sets, engine)
    log(" ".join(line[3:]))
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pretrain ended with {done.returncode}:\n{done.stderr}")
    first, *_, last = [m for m in read_metrics(str(work / model)) if m["step"] >= WARM_UP]
    return float((last["time"] - first["time"]) / (last["step"] - first["step"]))


def measure_loop(work: Path, rounds: int, steps: int) -> str:
    """Measure what logging and saving cost."""
    quiet, busy, every = [], [], 5
    for number in range(rounds):
        sparse = {**RARELY, "training.log_every_steps": steps // 2}
        dense = {**RARELY, "checkpoints.save_every_steps": every}
        quiet.append(seconds_per_step(work, f"quiet-{number}", steps, sparse))
        busy.append(seconds_per_step(work, f"busy-{number}", steps, dense))
    ratio = statistics.median(one / other for one, other in zip(busy, quiet, strict=True))
    step = statistics.median(quiet)
    return (
        f"loop: {step * 1e3:.0f} ms a step; {ratio:.3f} x with each step logged and a checkpoint"
        f" every {every} steps ({(ratio - 1) * step * every:.2f} s per checkpoint)"
    )


def measure_engines(work: Path, rounds: int, steps: int) -> str:
    """Measure seconds per step under both engines."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return "engines: left out: no TPUEstimator here; run it in .venv-estimator"
    seconds: dict[str, list[float]] = {"estimator": [], "pjrt": []}
    for number in range(rounds):
        for engine, values in seconds.items():
            values.append(seconds_per_step(work, f"{engine}-{number}", steps, RARELY, engine))
    pjrt, estimator = (statistics.median(seconds[name]) for name in ("pjrt", "estimator"))
    return (
        f"engines: a step takes {pjrt * 1e3:.0f} ms under pjrt, {estimator * 1e3:.0f} ms under"
        f" estimator: {pjrt / estimator:.2f} x"
    )


def measure_restart(work: Path, rounds: int, _: int) -> str:
    """Measure seconds from a restart to its first new step, with kept programs and without."""
    import jax

    if jax.__version_info__ < (0, 7):
        return f"restart: left out: jax {jax.__version__} keeps no CPU programs"
    sets = {**RARELY, "checkpoints.save_every_steps": 2}
    line = command(work, "restart", 100_000, sets, "pjrt")
    until_step(line, work / "restart")
    seconds: dict[str, list[float]] = {"kept": [], "compiled anew": []}
    for _ in range(rounds):
        for name, values in seconds.items():
            if name != "kept":
                shutil.rmtree(work / "restart" / "compiled")
            values.append(until_step(line, work / "restart"))
    kept, anew = (statistics.median(values) for values in seconds.values())
    return (
        f"restart: {kept:.1f} s from the start of the process to its first new step with kept"
        f" programs, {anew:.1f} s without: {kept / anew:.2f} x"
    )


def until_step(line: Sequence[str], model_dir: Path, limit: float = 1800) -> float:
    """Start `pretrain`, kill it once it has logged six steps more; how long the first took."""
    began = time.time()
    running = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while time.time() - began < limit:
            new = [one for one in read_metrics(str(model_dir)) if one["time"] > began]
            if len(new) >= 6:
                return float(new[0]["time"] - began)
            if running.poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit(f"pretrain ended with {running.poll()} before it had trained six steps")
    finally:
        running.kill()
        running.wait()


def measure_save(work: Path, saves: int, _: int) -> str:
    """Measure how long saving BERT-base's whole state takes: 4 GB of memory and of disk."""
    prepare_tensorflow(os.environ)
    from bigbird_ja.model.params import initial_parameters
    from bigbird_ja.run.checkpoints import CheckpointStore, Meta
    from bigbird_ja.storage.ownership import Owned
    from bigbird_ja.train import Dependencies, SingleProcess
    from bigbird_ja.train.beside import CheckpointSaver

    config, params = fitted(), initial_parameters(*with_data(fitted()), seed=0)
    slots = ("", "/adam_m", "/adam_v")
    state = {name + slot: value for slot in slots for name, value in params.items()}

    def snapshot() -> Callable[[], dict[str, Any]]:
        values = {name: value.copy() for name, value in state.items()}
        return lambda: values

    waits, works = [], []
    scratch = tempfile.mkdtemp(dir=work)
    store = CheckpointStore(str(work), owned=Owned.create(str(work), "run"))
    job: Any = SimpleNamespace(config=config, deps=Dependencies(), pod=SingleProcess())
    saver = CheckpointSaver(job, store, scratch, lambda: None, lambda _, took: works.append(took))
    for step in range(1, saves + 1):
        meta = Meta(step, "", "", 0.0, 0, 0, time.time(), next_batch=step, global_batch_size=1)
        start = time.monotonic()
        saver.save(meta, snapshot)
        waits.append(time.monotonic() - start)
        saver.wait()
    size = sum(file.bytes for file in store.read_meta(saves).files.values())
    wait, took = statistics.median(waits), statistics.median(works)
    return (
        f"save: {console.human_bytes(size)}: the step waits {wait:.3f} s per checkpoint, the"
        f" background takes {took:.2f} s ({console.human_bytes(size / took)}/s);"
        f" share of time lost at one checkpoint a minute: {wait / 60:.2%}"
    )


def startup_rows(work: Path, revision: str, rounds: int) -> list[list[object]]:
    """Time how long commands take to start, now and at an earlier commit: rows of the table."""

    def pretrain(place: str) -> list[str]:
        data = f"--data_dir={work / place.rstrip('0123456789') / 'data'}"
        line = [*PROGRAM, "pretrain", "--config=tiny-cpu", "--engine=pjrt", data]
        line += [f"--model_dir={work / place}-model", "--num_train_steps=1"]
        return [*line, "--set=training.warmup_steps=0"]

    commands = {"--help": lambda _: [*PROGRAM, "--help"], "pretrain, one step": pretrain}
    with revisions.tree_of(revision) as before:
        for side, tree in (("before", before), ("now", str(ROOT))):
            made = work / side
            made.mkdir()
            given = ["--config=tiny-cpu", f"--input={made}/text.jsonl"]
            for line in (
                ["sample", f"--output={made}/text.jsonl", "--documents=300"],
                ["tokenize", *given, f"--output_prefix={made}/ja"],
                ["make-data", *given, f"--tokenizer={made}/ja.model", f"--output_dir={made}/data"],
            ):
                revisions.timed([*PROGRAM, *line], tree)
        return [revisions.compare(name, before, rounds, c) for name, c in commands.items()]


PARTS: dict[str, Callable[[Path, int, int], str]] = {
    "loop": measure_loop,
    "engines": measure_engines,
    "restart": measure_restart,
    "save": measure_save,
}


def main() -> None:
    """Measure, and print a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="of: " + ", ".join(PARTS))
    parser.add_argument("--steps", type=int, default=20, help="of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rev", help="time the start-up against this commit's instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        work = Path(name)
        if options.rev:
            print(table(startup_rows(work, options.rev, options.rounds), revisions.HEADER))
            return
        synthetic.write(work / "data", (256,) * 4, **RECORDS)
        (work / "data" / "tokenizer.model").write_bytes(b"not read by training")
        for part in options.only.split(","):
            print(PARTS[part](work, options.rounds, options.steps), flush=True)


if __name__ == "__main__":
    main()
