"""Instants at which a test pauses a `pretrain` process, or lets the run's time limits expire.

An instant is the start or the end of a call of a function of the package. `watch` wraps these
functions in the process, so that the package needs no hooks.
"""

import functools
import importlib
import threading

# For each phase, the functions whose calls mark an instant of this phase: module, name, and whether
# the instant is before or after the call.
_CALLS = {
    "start-up": [("bigbird_ja.train.train", "check_run", "before")],
    "compile": [("bigbird_ja.train.train", "show_waiting", "before")],
    "input": [("bigbird_ja.data.pipeline", "read_batches", "before")],
    "step": [
        ("bigbird_ja.train.run_logger", "RunLogger.note_first_step", "after"),
        ("bigbird_ja.train.run_logger", "RunLogger.note_step", "after"),
    ],
    "evaluate": [("bigbird_ja.train.evaluations", "Evaluations.evaluate", "before")],
    "save": [("bigbird_ja.train.saver", "write_variables", "before")],
    "between-files": [
        ("bigbird_ja.model_dir.checkpoints", "storage.take", "after"),
        ("bigbird_ja.model_dir.checkpoints", "CheckpointStore._write_state", "before"),
        ("bigbird_ja.model_dir.checkpoints", "CheckpointStore._write_state", "after"),
        ("bigbird_ja.storage.ownership", "Owned.remove", "after"),
    ],
}
PHASES = tuple(_CALLS)


class Limits:
    """Timers that fire when the test calls `end`."""

    def __init__(self):
        self._timers = []

    def timer(self, seconds, act):
        """Return a timer that does not fire by itself, in place of `Dependencies.timer`."""
        timer = threading.Timer(threading.TIMEOUT_MAX, act)
        timer.daemon = True
        self._timers.append(timer)
        return timer

    def end(self):
        """Call the functions of all timers that have not fired."""
        for timer in self._timers:
            if not timer.finished.is_set():
                timer.function()


def watch(mark, limits=None):
    """Wrap the functions in `_CALLS`, so that later calls of them in this process call `mark`.

    Args:
        mark: function of the phase's name, called before or after the wrapped function.
        limits: `Limits` whose timers replace the timers of --max_train_minutes, or None.
    """
    for phase, calls in _CALLS.items():
        for module, path, when in calls:
            *owners, name = path.split(".")
            owner = importlib.import_module(module)
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, name, _marked(getattr(owner, name), phase, when, mark))
    if limits is not None:
        job = importlib.import_module("bigbird_ja.train.job")
        job.Dependencies = functools.partial(job.Dependencies, timer=limits.timer)


def _marked(call, phase, when, mark):
    @functools.wraps(call)
    def marked(*args, **more):
        if when == "before":
            mark(phase)
        result = call(*args, **more)
        if when == "after":
            mark(phase)
        return result

    return marked
