"""Measure the time until `pretrain` trains again after a kill (`make bench-restart`).

    python -m scripts.bench_restart

Kills `pretrain` on a CPU, and measures the time from the start of the next process to its first new
step. Compares restarts with and without the compiled programs that the run stores. Requires jax 0.7
or later, since older versions do not store programs for CPUs.
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

from bigbird_ja.model_dir.log import read_metrics
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
    """Describe the seconds from a restart to its first step, with and without stored programs."""
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
    """Start `pretrain`, kill it after six new steps, and return the seconds to the first step."""
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


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        print(measure_restart(Path(name), options.rounds))


if __name__ == "__main__":
    main()
