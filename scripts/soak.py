"""Kills training processes again and again, and compares the end with a run that was left alone.

    make soak        (.venv/bin/python -m scripts.soak --kills 60)

On disk, on a loopback bucket, and of a pod: `--kills` (`--pod_kills`) SIGKILLs at seeded random
instants, dealt in turn to start-up, compilation, input, step, save, between a save's files, and
evaluation. After each kill the same command runs again; when a run finishes, its weights and
optimiser state must equal the uninterrupted run's bit for bit, its metrics must repeat no step, and
nothing temporary may be left. The other processes of a pod must end by themselves, with status 76.
Prints kills survived out of tried. Takes about four seconds per kill on two cores, of a pod twenty.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from testkit import killing
from testkit.fakes.gcs_process import FakeGcs
from testkit.zygote import Zygote


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
        bucket = "gs://bucket/soak"  # which the fake server has
        stores = {"disk": f"{directory}/soak", "bucket": bucket, "pod": f"{directory}/pod"}
        kills = dict.fromkeys(options.stores.split(","), options.kills)
        kills["pod"] = options.pod_kills
        with Zygote(Path(directory), fake.environ(PYTHONUNBUFFERED="1")) as zygote:
            results = [
                _soak(zygote, options, Path(directory), store, stores[store], count)
                for store, count in kills.items()
                if count
            ]
    if options.json:
        print(json.dumps(results))
    return int(any(r["failure"] or r["survived"] < r["tried"] for r in results))


def _soak(
    zygote: Zygote, options: argparse.Namespace, directory: Path, store: str, place: str, kills: int
) -> dict:
    config, data = killing.write_inputs(directory)
    arguments = ["--config", str(config), "--data_dir", str(data), "--engine", options.engine]
    arguments += ["--mode", "train_and_eval", "--set", "training.eval_every_steps=20"]
    if store == "pod":  # each start compiles, in all processes
        arguments += ["--set", "training.global_batch_size=8", "--set", "model.num_layers=1"]
        arguments += ["--engine", "pjrt"]
    processes = options.pod_processes if store == "pod" else 1
    rng = random.Random(options.seed)
    result = killing.soak(zygote, arguments, place, processes, kills, rng).results(store)
    phases = ", ".join(f"{phase} {count}" for phase, count in result["kills"].items())
    interval = killing.CONFIG["checkpoints"]["save_every_steps"]
    print(
        f"{store}: {result['survived']} kills survived out of {result['tried']} ({phases}),"
        f" {result['rounds']} runs, each bit for bit as the uninterrupted one; at most"
        f" {result['most_steps_redone']} steps redone (a checkpoint every {interval});"
        f" {result['seconds_to_resume']} s to resume; what was not killed ended within"
        f" {result['most_seconds_to_end']:.1f} s. {result['failure']}",
        file=sys.stderr,
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
