"""Tiny runs to kill, and the soak: real processes, killed again and again at random instants."""

import hashlib
import json
import os
import signal
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import yaml

from bigbird_ja.storage.ownership import MARK
from testkit import pods, synthetic

# A mark of `train.Dependencies`, how often it may come at most, and the seconds after it in
# which to kill: 0 is between two files exactly.
PHASES = {
    "start-up": (1, 6.0),  # of a pod: the comparison of the hosts, devices, lock
    "compile": (1, 4.0),
    "input": (1, 0.5),
    "step": (8, 0.2),
    "save": (4, 0.05),
    "between-files": (12, 0.0),
    "evaluate": (2, 0.5),
}
_OF_THE_WRITER = ("save", "between-files")
_GONE = 76  # `errors.Stalled`
CONFIG: dict[str, dict[str, Any]] = {
    "model": {
        **{"hidden_size": 32, "num_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 64, "block_size": 16, "num_random_blocks": 1},
    },
    "data": {"shuffle_window": 2},
    "training": {
        **{"num_train_steps": 60, "global_batch_size": 4, "learning_rate": 0.002},
        **{"warmup_steps": 5, "dtype": "float32", "log_every_steps": 4},
    },
    "checkpoints": {
        **{"save_every_minutes": 0, "save_every_steps": 5, "keep_last": 2, "keep_every_steps": 0}
    },
}


def write_inputs(directory, seq_length=64):
    """A tiny config and a tiny data set; their paths."""
    config, data = directory / "tiny.yaml", directory / "data"
    directory.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(CONFIG))
    if not (data / "manifest.json").exists():
        synthetic.write(data, (40, 40, 40, 40), seq_length=seq_length)
        (data / "tokenizer.model").write_bytes(b"not read by training")
    return config, data


@dataclass
class Tally:
    """Count what happened over all kills.

    Args:
        most_steps_redone: between the newest checkpoint and the kill.
        seconds_to_resume: of each start that came to train.
        most_seconds_to_end: of the processes of a pod that were not killed.
    """

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    survived: int = 0
    rounds: int = 0
    most_steps_redone: int = 0
    seconds_to_resume: list[float] = field(default_factory=list)
    most_seconds_to_end: float = 0.0
    failure: str = ""

    def results(self, store):
        """As JSON."""
        median = round(statistics.median(self.seconds_to_resume or [0.0]), 2)
        tried = sum(self.kills.values())
        return {**vars(self), "store": store, "tried": tried, "seconds_to_resume": median}


def soak(zygote, arguments, place, processes, kills, rng):
    """Trains into one MODEL_DIR after another, killing one process all the while.

    Each run must end with the weights of one that was left alone.

    Args:
        zygote: starts the processes.
        arguments: of `pretrain`, without --model_dir.
        place: what the names of the MODEL_DIRs begin with, on disk or gs://.
        processes: 1, or those of a pod.
        kills: how many, dealt to the phases in turn.
        rng: chooses process, instant and delay.
    """
    tally, expected, pending = Tally(), "", 0
    phases = [list(PHASES)[number % len(PHASES)] for number in range(kills)]
    rng.shuffle(phases)
    while not expected or phases or pending:
        model_dir = f"{place}-{tally.rounds}"
        here = ["pretrain", *arguments, "--model_dir", model_dir]
        phase = phases[-1] if phases and expected else None
        if phase and _is_killed(zygote, here, model_dir, processes, phase, rng, tally):
            phases.pop()
            pending += 1
            continue
        ended = pods.wait(pods.start(zygote, processes, *here)) if not tally.failure else []
        problem = tally.failure or judge(model_dir, ended, expected)
        if problem:
            tally.failure = f"{model_dir}: {problem}"
            break
        expected = expected or digest(model_dir)
        tally.survived += pending
        tally.rounds, pending = tally.rounds + 1, 0
    return tally


def _is_killed(zygote, arguments, model_dir, processes, phase, rng, tally):
    """Kills one process at some instant of a phase; False where all have ended before it came."""
    from bigbird_ja.run.checkpoints import CheckpointStore

    most, seconds = PHASES[phase]
    victim = 0 if phase in _OF_THE_WRITER else rng.randrange(processes)
    hang = {victim: [phase, rng.randint(1, most)]}
    began = time.time()
    running = pods.start(zygote, processes, *arguments, hang=hang)
    while not (running[victim].hung.exists() or running[victim].is_over()):
        time.sleep(0.01)
    if is_reached := running[victim].hung.exists():
        if seconds:
            running[victim].hung.unlink()
            time.sleep(rng.random() * seconds)
        running[victim].send(signal.SIGKILL)
    killed = time.monotonic()
    ended = pods.wait(running)
    tally.most_seconds_to_end = max(tally.most_seconds_to_end, time.monotonic() - killed)
    statuses = [each.status for each in ended]
    if not is_reached or statuses.pop(victim) != -signal.SIGKILL:
        return False
    if any(status not in (_GONE, 0) for status in statuses):  # 0: killed after the end
        tally.failure = f"{phase}: the others ended with {statuses}: {[e.err for e in ended]}"
        return False
    tally.kills[phase] += 1
    marks = [line.split() for line in running[victim].read("marks").splitlines()]
    steps = [(int(step), float(at)) for phase, step, at in marks if phase == "step"]
    if steps:
        tally.seconds_to_resume.append(steps[0][1] - began)
        kept = (CheckpointStore(model_dir).steps() or [0])[-1]
        tally.most_steps_redone = max(tally.most_steps_redone, steps[-1][0] - kept)
    return True


def judge(model_dir, ended, expected):
    """Describe what is wrong with a run that came to its end; "" if nothing is."""
    from bigbird_ja import storage
    from bigbird_ja.run import log as run_log

    if any(each.status for each in ended):
        return f"ended with {[(each.status, each.err) for each in ended]}"
    if expected and digest(model_dir) != expected:
        return "the final weights differ from the uninterrupted run's"
    steps = [record["step"] for record in run_log.read_metrics(model_dir)]
    if steps != sorted(set(steps)):
        return f"metrics.jsonl repeats steps: {steps}"
    ours = ("model.ckpt-", "events.out.", "checkpoint", "config.yaml", "tokenizer.model", MARK)
    ours += ("metrics.jsonl", "events.jsonl", "heartbeat.json", "eval.jsonl")
    strange = [name for name in storage.list_files(model_dir) if not name.startswith(ours)]
    if len(strange) > 3:  # one save that was cut off is set aside, three files at most
        return f"files pile up: {strange}"
    left = [] if storage.is_remote(model_dir) else os.listdir(model_dir)
    hidden = [name for name in left if name.startswith(".") and name != MARK]
    return f"temporary files are left: {hidden}" if hidden else ""


def digest(model_dir):
    """SHA-256 over step and files' checksums of the newest checkpoint, optimiser state and all."""
    from bigbird_ja.run.checkpoints import CheckpointStore

    store = CheckpointStore(model_dir)
    meta = store.read_meta(store.steps()[-1])
    content = {"step": meta.step, "files": {name: vars(file) for name, file in meta.files.items()}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
