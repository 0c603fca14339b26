"""Reads what a run has logged, once, and puts it in order for the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import Evaluation, EventRecord, HeartbeatRecord, MetricsRecord
from bigbird_ja.run import log as run_log
from bigbird_ja.settings import Data
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.schema import Config

_ENDS = ("finished", "interrupted", "preempted", "failed", "diverged", "stalled", "stopped")
# Without a heartbeat for so long nobody is training, whatever the last state was.
_FRESH_SECONDS = 300.0


@dataclass(frozen=True)
class Session:
    """Describes one stretch of training, from a start to an end."""

    start: float  # UNIX seconds
    end: float
    ending: str | None  # the event that ended it; "killed" without one; None while it runs


@dataclass(frozen=True)
class RunLogs:
    """Holds what one MODEL_DIR says of its run."""

    name: str
    model_dir: str
    settings: tuple[Config, Data] | None
    metrics: list[MetricsRecord]
    evaluations: list[Evaluation]
    events: list[EventRecord]
    heartbeat: HeartbeatRecord | None
    sessions: list[Session]
    is_running: bool

    @property
    def step(self) -> int:
        """Return the newest step in metrics or heartbeat."""
        logged = self.metrics[-1]["step"] if self.metrics else 0
        return max(logged, self.heartbeat["global_step"] if self.heartbeat else 0)

    @property
    def total_steps(self) -> int | None:
        """Return the length of the whole run."""
        if self.heartbeat and (stated := self.heartbeat.get("num_train_steps")):
            return stated
        return self.settings[0].training.num_train_steps if self.settings else None

    @property
    def seconds(self) -> float:
        """Return the wall time of all sessions."""
        return sum(session.end - session.start for session in self.sessions)

    @property
    def train_seconds(self) -> float:
        """Return the time in which steps were made, as the model card states it."""
        logged = self.metrics[-1].get("train_seconds") if self.metrics else None
        return self.seconds if logged is None else logged

    @property
    def interruptions(self) -> int:
        """Count ends other than `finished`, as the model card does."""
        return run_log.unfinished_starts(self.events) - self.is_running

    @property
    def eta_seconds(self) -> float | None:
        """Return the seconds to the last step at the mean pace of training so far."""
        if not self.metrics or not self.total_steps or not self.metrics[-1]["step"]:
            return None
        return max(
            0.0, self.train_seconds / self.metrics[-1]["step"] * (self.total_steps - self.step)
        )

    @property
    def cost_usd(self) -> float | None:
        """Return the cost that the supervisor has counted; None where there was none."""
        return run_log.counted_usd(self.events)

    def times_of(self, *names: str) -> list[float]:
        """Return the times of the events of these names, UNIX seconds."""
        return [event["time"] for event in self.events if event["event"] in names]

    @property
    def breaks(self) -> list[float]:
        """Return the times at which training was interrupted, preempted or killed, or failed."""
        return [s.end for s in self.sessions if s.ending not in (None, "finished")]


def collect(model_dir: str, now: float) -> RunLogs:
    """Read one MODEL_DIR.

    Raises:
        BadInput: it holds nothing of a run.
    """
    config_path = storage.join(model_dir, "config.yaml")
    settings = read_config(config_path) if storage.exists(config_path) else None
    metrics = sorted(run_log.read_metrics(model_dir), key=lambda m: m["step"])
    events = sorted(run_log.read_events(model_dir), key=lambda e: e["time"])
    if settings is None and not metrics and not events:
        raise BadInput(f"--model_dir {model_dir}: holds no run (no config.yaml, no metrics.jsonl)")
    heartbeat = run_log.read_heartbeat(model_dir)
    newest = heartbeat["time"] if heartbeat else 0.0
    stopped = heartbeat is None or heartbeat["state"] == "stopped"
    is_running = not stopped and now - newest < _FRESH_SECONDS
    return RunLogs(
        name=storage.base_name(model_dir),
        model_dir=model_dir,
        settings=settings,
        metrics=metrics,
        evaluations=_by_step(run_log.read_evaluations(model_dir)),
        events=events,
        heartbeat=heartbeat,
        sessions=_sessions(events, metrics, newest, now if is_running else None),
        is_running=is_running,
    )


def distinct(runs: Sequence[RunLogs]) -> list[RunLogs]:
    """Name each run by the shortest end of its path that no other has.

    A page shows no more of the path.
    """
    parts = [[part for part in run.model_dir.split("/") if part] for run in runs]
    length = next(
        (n for n in range(1, 9) if len({tuple(part[-n:]) for part in parts}) == len(runs)), 1
    )
    return [
        replace(run, name="/".join(part[-length:])) for run, part in zip(runs, parts, strict=True)
    ]


def _sessions(
    events: list[EventRecord], metrics: list[MetricsRecord], newest: float, now: float | None
) -> list[Session]:
    """Find the sessions in the events; `now` is the end of the last one if it still runs.

    A kill leaves no event: such a session ends with the last log line before the next start, the
    last one with the heartbeat at `newest`.
    """
    starts = [i for i, e in enumerate(events) if e["event"] in ("started", "resumed")]
    sessions = []
    for first, following in zip(starts, [*starts[1:], len(events)], strict=True):
        is_last = following == len(events)
        start = events[first]["time"]
        ending = next((e for e in events[first + 1 : following] if e["event"] in _ENDS), None)
        if ending is not None:
            sessions.append(Session(start, ending["time"], ending["event"]))
        elif is_last and now is not None:
            sessions.append(Session(start, now, None))
        else:
            limit = float("inf") if is_last else events[following]["time"]
            times = [m["time"] for m in metrics if start <= m["time"] < limit]
            times += [e["time"] for e in events[first:following]]
            end = max([*times, newest if is_last else start])
            sessions.append(Session(start, end, "killed"))
    return sessions


def _by_step(lines: list[Evaluation]) -> list[Evaluation]:
    """Return the newest line of each step, ascending."""
    newest = {line["step"]: line for line in lines}
    return [newest[step] for step in sorted(newest)]
