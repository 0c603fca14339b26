"""Measure how soon `pretrain` trains again after a kill, and how soon commands start.

    python -m scripts.bench_startup               # make bench-restart
    python -m scripts.bench_startup --rev COMMIT  # make bench-startup REV=COMMIT

The first kills `pretrain` on a CPU and measures from the start of the next process to its first new
step, with the compiled programs kept with the run and without (jax 0.7 or later; older ones keep no
CPU programs). The second times `--help`, and `pretrain` of the preset tiny-cpu to its first step,
in pairs against the same commands of an earlier commit, each on data that its own commands made.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bigbird_ja.process.console import table
from bigbird_ja.run.log import read_metrics
from scripts import revisions
from testkit import ROOT, synthetic

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
    "checkpoints.save_every_steps": 2,
    "training.log_every_steps": 1,
}


def measure_restart(work: Path, rounds: int) -> str:
    """Measure seconds from a restart to its first new step, with kept programs and without."""
    synthetic.write(work / "data", (256,) * 4, **RECORDS)
    (work / "data" / "tokenizer.model").write_bytes(b"not read by training")
    line = [*PROGRAM, "pretrain", f"--config={PRESET}", "--engine=pjrt", "--num_train_steps=100000"]
    line += [f"--data_dir={work / 'data'}", f"--model_dir={work / 'restart'}"]
    line += [f"--set={key}={value}" for key, value in SETTINGS.items()]
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rev", help="earlier commit to compare the start-up with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        if options.rev:
            rows = startup_rows(Path(name), options.rev, options.rounds)
            print(table(rows, revisions.HEADER))
        else:
            print(measure_restart(Path(name), options.rounds))


if __name__ == "__main__":
    main()
