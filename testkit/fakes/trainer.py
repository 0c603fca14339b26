"""What `bigbird-ja pretrain` looks like from outside, without TensorFlow: steps, heartbeat, saves.

`python(directory)` writes a stand-in for the VM's Python that starts this instead of `pretrain`
and is the real Python for all else, so that the start-up script itself runs unchanged.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time

import yaml

STEP_SECONDS = 0.004
SAVE_EVERY = 25  # steps


def python(directory: str) -> str:
    """Path of the stand-in."""
    path = os.path.join(directory, "python-of-the-vm")
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            "#!/bin/bash\n"
            'if [[ "$1 $2 ${3:-}" == "-m bigbird_ja pretrain" ]]; then\n'
            f'  exec {sys.executable} {os.path.abspath(__file__)} "${{@:4}}"\n'
            "fi\n"
            f'exec {sys.executable} "$@"\n'
        )
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def main(arguments: list[str]) -> int:
    """Trains to `training.num_train_steps`."""
    flags = dict(a[2:].split("=", 1) for a in arguments if "=" in a)
    with open(flags["config"], encoding="utf-8") as file:
        target = int(yaml.safe_load(file)["training"]["num_train_steps"])
    model_dir = flags["model_dir"]
    os.makedirs(model_dir, exist_ok=True)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    others = meet(model_dir, stopped)
    if os.environ.get("JAX_PROCESS_ID", "0") != "0":
        return follow(model_dir, others, stopped)
    step = _read(os.path.join(model_dir, "checkpoint.json")).get("step", 0)
    beat(model_dir, step, "starting")
    print(f"starting at {step} with {' '.join(arguments)}", flush=True)
    while step < target and not stopped:
        time.sleep(STEP_SECONDS)
        step += 1
        if not all(map(is_alive, others)):
            beat(model_dir, step, "stopped", "stalled")
            return 76
        if step % 5 == 0:
            beat(model_dir, step, "training")
        if step % SAVE_EVERY == 0:
            _save(model_dir, step)
    _save(model_dir, step)
    beat(model_dir, step, "stopped", "finished" if step >= target else "interrupted")
    return 0 if step >= target else 75


def meet(model_dir: str, stopped: list[int]) -> list[int]:
    """The other processes of a slice, once all of them have come to the shared folder."""
    count = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
    path = os.path.join(model_dir, "process-{}")
    _write(path.format(os.environ.get("JAX_PROCESS_ID", "0")), {"pid": os.getpid()})
    while not stopped:
        pids = [_read(path.format(number)).get("pid", 0) for number in range(count)]
        if all(pid and is_alive(pid) for pid in pids):
            return [pid for pid in pids if pid != os.getpid()]
        time.sleep(0.05)
    return []


def follow(model_dir: str, others: list[int], stopped: list[int]) -> int:
    """What all but the first process of a slice do: they end as it ends."""
    while not stopped and all(map(is_alive, others)):
        time.sleep(0.02)
    if stopped:
        return 75
    state = dict(_read(os.path.join(model_dir, "heartbeat.json")))
    return 0 if state.get("reason") == "finished" else 76


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def beat(model_dir: str, step: int, state: str, reason: str | None = None) -> None:
    """Writes heartbeat.json."""
    values = {
        "run": "fake", "global_step": step, "time": time.time(), "state": state, "reason": reason,
        "tokens_per_second": 1000.0, "host": "vm", "pid": os.getpid(),
    }  # fmt: skip
    _write(os.path.join(model_dir, "heartbeat.json"), values)


def _save(model_dir: str, step: int) -> None:
    """A sidecar is what makes a checkpoint."""
    _write(os.path.join(model_dir, f"model.ckpt-{step}.json"), {"step": step})
    _write(os.path.join(model_dir, "checkpoint.json"), {"step": step})


def _write(path: str, values: dict[str, object]) -> None:
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(values, file)
    os.replace(f"{path}.tmp", path)


def _read(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
