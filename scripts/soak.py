"""Kills a training process again and again, and compares the end with a run that was left alone.

    make soak        (.venv/bin/python -m scripts.soak --kills 60)

For each store (disk, loopback bucket) `--kills` SIGKILLs at seeded random instants, dealt in turn
to start-up, input, step, save and between a save's files. After each kill the same command runs
again; when a run finishes, its weights and optimiser state must equal the uninterrupted run's bit
for bit, its metrics must repeat no step, and nothing temporary may be left. Prints kills survived
out of tried. Takes about four seconds per kill on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from testkit import killing
from testkit.fakes.gcs_process import FakeGcs


def main() -> int:
    """Runs the soak; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="per store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stores", default="disk,bucket")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with FakeGcs() as fake, tempfile.TemporaryDirectory(prefix="soak-") as directory:
        os.environ.update(fake.env)  # before TensorFlow is imported
        results = _soak(options, Path(directory))
    _print(results)
    if options.json:
        print(json.dumps(results))
    return 0 if all(r["survived"] == r["tried"] >= options.kills for r in results) else 1


def _soak(options: argparse.Namespace, directory: Path) -> list[dict]:
    killing.import_trainer()
    config, data = killing.write_inputs(directory)
    arguments = ["--config", str(config), "--data_dir", str(data)]
    log, alone = directory / "log.txt", str(directory / "alone")
    status = killing.run_to_end([*arguments, "--model_dir", alone], log)
    if status:
        sys.exit(f"the uninterrupted run ended with status {status}:\n{log.read_text()[-3000:]}")
    expected = killing.digest(alone)
    results = []
    for store in options.stores.split(","):
        base = "gs://bucket/soak" if store == "bucket" else str(directory / "soak")
        tally = killing.soak(
            arguments,
            [f"{base}-{i}" for i in range(options.kills)],
            expected,
            options.kills,
            random.Random(options.seed),
            log,
        )
        for failure in tally.failures:
            print(f"{failure}\n{log.read_text()[-4000:]}", file=sys.stderr)
        results.append(
            {
                "store": store,
                "tried": tally.tried,
                "survived": tally.survived,
                "kills": tally.kills,
                "rounds": tally.rounds,
                "most_steps_redone": tally.most_steps_redone,
                "median_seconds_to_resume": round(statistics.median(tally.seconds_to_resume), 2),
            }
        )
        print(f"{store}: {tally.survived} of {tally.tried} survived", file=sys.stderr)
    return results


def _print(results: list[dict]) -> None:
    interval = killing.CONFIG["checkpoints"]["save_every_steps"]
    for result in results:
        phases = ", ".join(f"{phase} {count}" for phase, count in result["kills"].items())
        print(
            f"{result['store']}: {result['survived']} kills survived out of {result['tried']}"
            f" ({phases}), {result['rounds']} runs, each bit for bit as the uninterrupted one;"
            f" at most {result['most_steps_redone']} steps redone (a checkpoint every {interval});"
            f" {result['median_seconds_to_resume']} s to resume"
        )


if __name__ == "__main__":
    sys.exit(main())
