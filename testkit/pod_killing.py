"""Kills one process of a pod at a random instant, again and again; the pod's part of the soak."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testkit import killing, pods
from testkit.killing import Trainer

# A mark of the victim, how often it may come at most, and the seconds after it to kill in.
_INSTANTS = {
    "start-up": (1, 6.0),  # the comparison of the hosts, devices, lock
    "compile": (1, 4.0),
    "input": (1, 0.5),
    "step": (6, 0.2),  # a turn of some steps; up to the fifth save
    "save": (4, 0.05),
    "between-files": (12, 0.02),
    "evaluate": (2, 0.5),
}
_OF_THE_WRITER = ("save", "between-files")
_GONE = 76  # `errors.Stalled`


@dataclass
class PodTally(killing.Kills):
    """What happened over all kills of a pod's processes."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_INSTANTS, 0))
    most_seconds_to_end: float = 0.0  # of the processes that were not killed


def run_pod(
    arguments: Sequence[str],
    processes: int,
    log: Path,
    kill: tuple[int, str, int, float] | None = None,
) -> tuple[list[int], float]:
    """A pod's processes until all have ended.

    Args:
        arguments: of `pretrain`.
        processes: how many.
        log: gets their output.
        kill: process, mark, which one of that name, and seconds after it.

    Returns:
        Their statuses, and the seconds from the kill to the last end.
    """
    address = pods.free_address()
    os.environ.update(pods.ENVIRON)
    trainers = [
        Trainer([*arguments, *pods.place(address, processes, index)], log)
        for index in range(processes)
    ]
    victim, phase, wanted, delay = kill or (-1, "", 0, 0.0)
    at = killed = float("inf")
    alive = dict(enumerate(trainers))
    while alive:
        now = time.monotonic()
        if now >= at:
            trainers[victim].kill()
            alive.pop(victim, None)
            at, killed = float("inf"), now
            continue
        if now - killed > pods.PATIENCE:
            for trainer in alive.values():
                trainer.kill()
            break
        pipes = {trainer.pipe: index for index, trainer in alive.items()}
        for pipe in select.select(list(pipes), [], [], min(at - now, 1.0))[0]:
            index = pipes[pipe]
            mark = trainers[index].next_mark()
            if mark is None:
                del alive[index]
                continue
            trainers[index].go_on()
            if index == victim and mark == phase:
                wanted -= 1
                at = time.monotonic() + delay if wanted == 0 else at
    ended = time.monotonic() - killed if killed < float("inf") else 0.0
    return [trainer.wait() for trainer in trainers], ended


def soak(
    arguments: Sequence[str],
    directory: Path,
    processes: int,
    kills: int,
    rng: random.Random,
    log: Path,
) -> PodTally:
    """An undisturbed pod, then pods that are killed; each must end with the same weights.

    Args:
        arguments: of `pretrain`, without --model_dir.
        directory: for the runs.
        processes: of each pod.
        kills: how many.
        rng: chooses process and instant.
        log: the trainers' output.
    """
    tally = PodTally()
    alone = str(directory / "pod-alone")
    statuses, _ = run_pod([*arguments, "--model_dir", alone], processes, log)
    if any(statuses):
        tally.failures.append(f"the undisturbed pod ended with {statuses}")
        return tally
    expected = killing.digest(alone)
    number, pending = 0, 0
    while tally.tried < kills or pending:
        model_dir = str(directory / f"pod-{number}")
        kill = None if tally.tried >= kills else _instant(processes, rng)
        here = [*arguments, "--model_dir", model_dir]
        statuses, seconds = run_pod(here, processes, log, kill)
        if kill is not None and statuses[kill[0]] == -signal.SIGKILL:
            tally.kills[kill[1]] += 1
            pending += 1
            tally.most_seconds_to_end = max(tally.most_seconds_to_end, seconds)
            others = [s for index, s in enumerate(statuses) if index != kill[0]]
            if any(status not in (_GONE, 0) for status in others):  # 0: killed after the end
                tally.failures.append(f"{model_dir}: {kill}: the others ended with {others}")
                return tally
            continue
        problem = killing.judge(model_dir, max(statuses, key=abs), expected)
        if problem:
            tally.failures.append(f"{model_dir}: {problem}")
            return tally
        tally.survived += pending
        number, pending = number + 1, 0
    return tally


def _instant(processes: int, rng: random.Random) -> tuple[int, str, int, float]:
    phase = rng.choice(list(_INSTANTS))
    victim = 0 if phase in _OF_THE_WRITER else rng.randrange(processes)
    times, seconds = _INSTANTS[phase]
    return victim, phase, rng.randint(1, times), rng.random() * seconds
