"""What happens between two device loops: look, log, save, stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from bigbird_ja.errors import Diverged
from bigbird_ja.train.graph import TrainGraph
from bigbird_ja.train.signals import StopRequest


class Listener(Protocol):
    """What the engine does at each instant; all are called in the main thread."""

    def session_created(self) -> None:
        """The graph is built and the variables have their values."""

    def first_step_next(self) -> None:
        """The next thing to happen is the first step of this process."""

    def stepped(self, step: int) -> None:
        """Steps up to `step` are finished and finite."""

    def logged(self, metrics: dict[str, float]) -> None:
        """The metrics of one logged step, in order."""

    def is_save_due(self, step: int) -> bool:
        """Whether to save now."""

    def save(self, step: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Saves in the background."""

    def is_evaluation_due(self, step: int) -> bool:
        """Whether to evaluate now."""

    def evaluate(self, step: int, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Evaluates the parameters on held-out records."""


class TrainHook(tf.estimator.SessionRunHook):
    """Between two loops (on CPU: two steps), in this order: finiteness, logging, saving, stopping.

    Args:
        graph: whose variables are read.
        listener: what is done.
        stop: whether someone asked to stop.
        num_train_steps: the last step.
        log_every_steps: which steps are logged; the last one is always.
    """

    def __init__(
        self,
        graph: TrainGraph,
        listener: Listener,
        stop: StopRequest,
        num_train_steps: int,
        log_every_steps: int,
    ) -> None:
        self._graph, self._listener, self._stop = graph, listener, stop
        self._total, self._every = num_train_steps, log_every_steps
        self._logged = 0
        self._is_first = True

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Notes where training starts; a request to stop ends it before the first step."""
        self._logged, _ = self._graph.read_notes(session)
        self._listener.session_created()

    def before_run(self, run_context: Any) -> None:
        """Asks for nothing: what a loop changes is read after it, never beside it."""
        if self._is_first:
            self._is_first = False
            self._listener.first_step_next()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """See the class."""
        session = run_context.session
        step, bad = self._graph.read_notes(session)
        if bad >= 0:
            raise Diverged(
                f"step {bad}: loss or gradients are NaN or infinite: the last checkpoint is intact;"
                " try a lower training.learning_rate, a longer warm-up, or other data"
            )
        self._listener.stepped(step)
        is_asked, is_last = self._stop.is_set(), step >= self._total
        if step // self._every > self._logged // self._every or is_asked or is_last:
            self._log(session, step, and_last=is_asked or is_last)
        if is_asked:
            self._stop.answered()
        if is_asked or is_last or self._listener.is_save_due(step):
            self._listener.save(step, lambda: self._graph.snapshot(session))
        if self._listener.is_evaluation_due(step) and not is_asked:
            self._listener.evaluate(step, lambda: self._graph.snapshot(session))
        if is_asked or is_last:
            run_context.request_stop()

    def _log(self, session: Any, step: int, and_last: bool) -> None:
        found = self._graph.read_metrics(session)
        for number in sorted(found):
            is_due = number % self._every == 0 or (and_last and number == step)
            if number > self._logged and is_due:
                self._listener.logged({"step": number, **found[number]})
        self._logged = step


class ReinstallSignals(tf.estimator.SessionRunHook):
    """Takes Ctrl-C back: TPUEstimator sets it to kill the process before each loop."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop

    def before_run(self, run_context: Any) -> None:
        """Runs after TPUEstimator's own hooks."""
        self._stop.install()
