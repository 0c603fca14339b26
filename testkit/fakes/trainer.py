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
from types import FrameType

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
    """Trains to `training.num_train_steps`; FAKE_TRAINER=freeze, mute or exit:N misbehaves."""
    flags = dict(a[2:].split("=", 1) for a in arguments if "=" in a)
    with open(flags["config"], encoding="utf-8") as file:
        target = int(yaml.safe_load(file)["training"]["num_train_steps"])
    model_dir, behaviour = flags["model_dir"], os.environ.get("FAKE_TRAINER", "")
    os.makedirs(model_dir, exist_ok=True)
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)
    pod = Pod(model_dir)
    pod.wait(stopped)
    if pod.index:
        return pod.follow(stopped)
    step = _read(os.path.join(model_dir, "checkpoint.json")).get("step", 0)
    start = step
    beat(model_dir, step, "starting")
    print(f"starting at {step} with {' '.join(arguments)}", flush=True)
    if behaviour.startswith("exit:"):
        print("something went wrong", flush=True)
        return int(behaviour.partition(":")[2])
    while step < target and (behaviour == "freeze" or not stopped):
        time.sleep(STEP_SECONDS)
        if behaviour == "freeze" and step >= start + 15:
            beat(model_dir, step, "training")  # alive by its own word only
            continue
        step += 1
        if pod.has_lost_one():
            beat(model_dir, step, "stopped", "stalled")
            return 76
        if step % 5 == 0:
            beat(model_dir, step, "training")
        if step % SAVE_EVERY == 0:
            _save(model_dir, step)
            with open(os.path.join(model_dir, "metrics.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "time": time.time()}) + "\n")
    _save(model_dir, step)
    if behaviour == "mute":  # killed between the last checkpoint and the last heartbeat
        os.kill(os.getpid(), signal.SIGKILL)
    beat(model_dir, step, "stopped", "finished" if step >= target else "interrupted")
    return 0 if step >= target else 75


class Pod:
    """The processes of a slice: each says its number and process on the shared folder."""

    def __init__(self, model_dir: str) -> None:
        self.index = int(os.environ.get("JAX_PROCESS_ID", "0"))
        self._count = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
        self._model_dir = model_dir
        self._others: list[int] = []
        self._file = os.path.join(model_dir, "process-{}")
        if self._count > 1:
            _write(self._file.format(self.index), {"pid": os.getpid()})

    def wait(self, stopped: list[int]) -> None:
        """Until all are there."""
        while not stopped:
            result = [_read(self._file.format(n)).get("pid", 0) for n in range(self._count)]
            if self._count == 1 or all(pid and _is_alive(pid) for pid in result):
                self._others = [pid for pid in result if pid and pid != os.getpid()]
                return
            time.sleep(0.05)

    def has_lost_one(self) -> bool:
        return not all(_is_alive(pid) for pid in self._others)

    def follow(self, stopped: list[int]) -> int:
        """What all but the first do: they end as it ends."""
        print(f"process {self.index} follows", flush=True)
        while not stopped and not self.has_lost_one():
            time.sleep(0.02)
        if stopped:
            return 75
        state = dict(_read(os.path.join(self._model_dir, "heartbeat.json")))
        return 0 if state.get("reason") == "finished" else 76


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
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
