"""Kill training processes repeatedly, and compare the results with an uninterrupted run.

Processes get a SIGKILL at a random instant of the start-up, the compilation, the input, a step, a
save (also between its files) or an evaluation. After each kill the same command is rerun.
"""

import os
import signal
import time
from dataclasses import dataclass, field

from bigbird_ja import storage
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.storage.ownership import MANIFEST_NAME
from testkit import killing, pods

# Numbers (N, S) for each phase of `testkit.instants`. A process is killed at most S seconds after
# one of the first N occurrences of the phase.
PHASES = {
    "start-up": (1, 6.0),  # A pod also compares its hosts in this phase.
    "compile": (1, 4.0),
    "input": (1, 0.5),
    "step": (8, 0.2),
    "save": (4, 0.05),
    "between-files": (12, 0.0),
    "evaluate": (2, 0.5),
}
_OF_THE_WRITER = ("save", "between-files")
_GONE = 76  # exit status of `errors.Stalled`


@dataclass
class Tally:
    """Result of all kills.

    Attributes:
        kills: number of kills by phase.
        survived: number of kills after which the run ended with the expected weights.
        rounds: number of runs that ended with the expected weights.
        failure: description of the first failure, or "".
    """

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    survived: int = 0
    rounds: int = 0
    failure: str = ""


def soak(zygote, arguments, place, processes, kills, rng):
    """Train runs one after the other, and repeatedly kill one of their processes.

    Args:
        zygote: object that starts the processes.
        arguments: arguments of `pretrain`, without --model_dir.
        place: prefix of the MODEL_DIRs, on disk or gs://.
        processes: number of processes. More than 1 form a pod.
        kills: number of kills, divided equally among the phases.
        rng: random numbers for the process, instant and delay of each kill.
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
        expected = expected or killing.digest(model_dir)
        tally.survived += pending
        tally.rounds, pending = tally.rounds + 1, 0
    return tally


def _is_killed(zygote, arguments, model_dir, processes, phase, rng, tally):
    """Kill one process during a phase.

    Returns:
        False if the process ended before its kill, or another process failed.
    """
    most, seconds = PHASES[phase]
    victim = 0 if phase in _OF_THE_WRITER else rng.randrange(processes)
    hang = {victim: [phase, rng.randint(1, most)]}
    running = pods.start(zygote, processes, *arguments, hang=hang)
    while not (running[victim].hung.exists() or running[victim].is_over()):
        time.sleep(0.01)
    if is_reached := running[victim].hung.exists():
        if seconds:
            running[victim].hung.unlink()
            time.sleep(rng.random() * seconds)
        running[victim].send(signal.SIGKILL)
    ended = pods.wait(running)
    statuses = [each.status for each in ended]
    if not is_reached or statuses.pop(victim) != -signal.SIGKILL:
        return False
    # The other processes may end with status 0 if the kill came after the end of the run.
    if any(status not in (_GONE, 0) for status in statuses):
        tally.failure = f"{phase}: the others ended with {statuses}: {[e.err for e in ended]}"
        return False
    tally.kills[phase] += 1
    return True


def judge(model_dir, ended, expected):
    """Return a description of the failure of a run that has ended, or ""."""
    if any(each.status for each in ended):
        return f"ended with {[(each.status, each.err) for each in ended]}"
    if expected and killing.digest(model_dir) != expected:
        return "the final weights differ from the uninterrupted run's"
    steps = [record["step"] for record in run_log.read_metrics(model_dir)]
    if steps != sorted(set(steps)):
        return f"metrics.jsonl repeats steps: {steps}"
    ours = (
        "model.ckpt-",
        "events.out.",
        "checkpoint",
        "config.yaml",
        "tokenizer.model",
        MANIFEST_NAME,
    )
    ours += ("metrics.jsonl", "events.jsonl", "heartbeat.json", "eval.jsonl")
    strange = [name for name in storage.list_files(model_dir) if not name.startswith(ours)]
    # At most one interrupted save may have left files that were renamed aside. A save writes up to
    # three files.
    if len(strange) > 3:
        return f"files pile up: {strange}"
    left = [] if storage.is_remote(model_dir) else os.listdir(model_dir)
    hidden = [name for name in left if name.startswith(".") and name != MANIFEST_NAME]
    return f"temporary files are left: {hidden}" if hidden else ""
