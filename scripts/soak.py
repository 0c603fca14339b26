"""Kills a training process again and again, and compares the end with a run that was left alone.

    make soak        (.venv/bin/python -m scripts.soak --kills 60)

For each store (disk, loopback bucket) `--kills` SIGKILLs at seeded random instants, dealt in turn
to start-up, compilation, input, step, save and between a save's files. After each kill the same
command runs again; when a run finishes, its weights and optimiser state must equal the
uninterrupted run's bit for bit, its metrics must repeat no step, and nothing temporary may be left.
Then `--pod_kills` SIGKILLs to one process of a pod: the others must end by themselves, with status
76. Prints kills survived out of tried. Takes about four seconds per kill on two cores, of a pod
twenty.
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

from testkit import killing, pod_killing
from testkit.fakes.gcs_process import FakeGcs


def main() -> int:
    """Runs the soak; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="per store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stores", default="disk,bucket")
    parser.add_argument("--engine", default="auto", help="as pretrain's")
    parser.add_argument("--pod_kills", type=int, default=20, help="of a process of a pod")
    parser.add_argument("--pod_processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with FakeGcs() as fake, tempfile.TemporaryDirectory(prefix="soak-") as directory:
        os.environ.update(fake.env)  # before TensorFlow is imported
        killing.import_trainer()
        if options.engine == "pjrt" or options.pod_kills:
            from bigbird_ja.train.engines import pjrt  # noqa: F401
        results = _soak(options, Path(directory)) if options.kills else []
        pods = _soak_pods(options, Path(directory)) if options.pod_kills else []
    _print(results)
    for result in pods:
        _print_pods(result)
    if options.json:
        print(json.dumps([*results, *pods]))
    is_good = all(r["survived"] == r["tried"] >= options.kills for r in results)
    is_good &= all(r["survived"] == r["tried"] >= options.pod_kills for r in pods)
    return 0 if is_good else 1


def _soak(options: argparse.Namespace, directory: Path) -> list[dict]:
    config, data = killing.write_inputs(directory)
    arguments = ["--config", str(config), "--data_dir", str(data), "--engine", options.engine]
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


def _soak_pods(options: argparse.Namespace, directory: Path) -> list[dict]:
    """SIGKILLs to one process of a pod at random instants."""
    config, data = killing.write_inputs(directory)
    arguments = ["--config", str(config), "--data_dir", str(data), "--engine", "pjrt"]
    arguments += ["--set", "training.global_batch_size=8", "--mode", "train_and_eval"]
    arguments += ["--set", "training.eval_every_steps=20"]
    arguments += ["--set", "model.num_layers=1"]  # each start compiles, in all processes
    log, rng = directory / "pods.txt", random.Random(options.seed)
    tally = pod_killing.soak(
        arguments, directory, options.pod_processes, options.pod_kills, rng, log
    )
    for failure in tally.failures:
        print(f"{failure}\n{log.read_text()[-4000:]}", file=sys.stderr)
    return [
        {
            "store": f"pod of {options.pod_processes}",
            "tried": tally.tried,
            "survived": tally.survived,
            "kills": tally.kills,
            "most_seconds_to_end": round(tally.most_seconds_to_end, 1),
        }
    ]


def _print_pods(result: dict) -> None:
    phases = ", ".join(f"{phase} {count}" for phase, count in result["kills"].items())
    print(
        f"{result['store']}: {result['survived']} kills of one process survived out of"
        f" {result['tried']} ({phases}), the same weights bit for bit; the others ended within"
        f" {result['most_seconds_to_end']} s"
    )


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
