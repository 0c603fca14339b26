"""Fake `bigbird-ja pretrain` without TensorFlow, which writes heartbeats and checkpoints.

`python(directory)` writes a program that replaces the VM's Python. For `pretrain`, this program
runs this module. Otherwise it runs the real Python. The startup script therefore runs unchanged.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import yaml

STEP_SECONDS = 0.004
SAVE_EVERY = 25  # steps between saves


def python(directory):
    """Write the program that takes the place of Python, and return its path."""
    path = Path(directory, "python-of-the-vm")
    path.write_text(
        "#!/bin/bash\n"
        'if [[ "$1 $2 ${3:-}" == "-m bigbird_ja pretrain" ]]; then\n'
        f'  exec {sys.executable} {os.path.abspath(__file__)} "${{@:4}}"\n'
        "fi\n"
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def main(arguments):
    """Simulate training until `training.num_train_steps`."""
    flags = dict(a[2:].split("=", 1) for a in arguments if "=" in a)
    with open(flags["config"], encoding="utf-8") as file:
        target = int(yaml.safe_load(file)["training"]["num_train_steps"])
    model_dir = flags["model_dir"]
    os.makedirs(model_dir, exist_ok=True)
    stopped = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    step = _read(os.path.join(model_dir, "checkpoint.json")).get("step", 0)
    beat(model_dir, step, "starting")
    print(f"starting at {step} with {' '.join(arguments)}", flush=True)
    while step < target and not stopped:
        time.sleep(STEP_SECONDS)
        step += 1
        if step % 5 == 0:
            beat(model_dir, step, "training")
        if step % SAVE_EVERY == 0:
            _save(model_dir, step)
    _save(model_dir, step)
    beat(model_dir, step, "stopped", "finished" if step >= target else "interrupted")
    return 0 if step >= target else 75


def beat(model_dir, step, state, reason=None):
    """Write heartbeat.json."""
    where = {"run": "fake", "host": "vm", "pid": os.getpid(), "tokens_per_second": 1000.0}
    where["compile_seconds"] = 37.2
    now = {"global_step": step, "time": time.time(), "state": state, "reason": reason}
    _write(os.path.join(model_dir, "heartbeat.json"), {**where, **now})


def _save(model_dir, step):
    """Write the metadata files that mark a checkpoint as complete."""
    _write(os.path.join(model_dir, f"model.ckpt-{step}.json"), {"step": step})
    _write(os.path.join(model_dir, "checkpoint.json"), {"step": step})


def _write(path, values):
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(values, file)
    os.replace(f"{path}.tmp", path)


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
