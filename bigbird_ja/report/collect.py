"""What a run's own files say about it, read once and put in order for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.records import (
    Evaluation,
    EventRecord,
    HeartbeatRecord,
    MetricsRecord,
    ProbeLine,
)
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.schema import Config

Line = TypeVar("Line", Evaluation, ProbeLine)


_STARTS = ("started", "resumed")
_ENDS = ("finished", "interrupted", "preempted", "failed", "diverged", "stalled", "stopped")
# Without a heartbeat for so long nobody is training, whatever the last state was.
_FRESH_SECONDS = 300.0


@dataclass(frozen=True)
class Session:
    """One stretch of training between two ends."""

    start: float  # UNIX seconds
    end: float
    ending: str | None  # the event that ended it; None while it goes on; "killed" without a word


@dataclass(frozen=True)
class Run:
    """One MODEL_DIR."""

    name: str
    model_dir: str
    config: Config | None
    metrics: list[MetricsRecord]
    evaluations: list[Evaluation]
    probes: list[ProbeLine]
    events: list[EventRecord]
    heartbeat: HeartbeatRecord | None
    sessions: list[Session]
    checkpoints: list[tuple[float, int]]  # (UNIX seconds, step)
    data: dict[str, Any] | None = None  # of the manifest
    is_running: bool = False
    usd_per_hour: float | None = None
    budget_usd: float | None = None

    @property
    def step(self) -> int:
        """The newest step that anything tells of."""
        seen = [self.metrics[-1]["step"]] if self.metrics else [0]
        if self.heartbeat:
            seen.append(self.heartbeat["global_step"])
        return max(seen)

    @property
    def total_steps(self) -> int | None:
        """Steps in all."""
        if self.heartbeat and (stated := self.heartbeat.get("num_train_steps")):
            return stated
        return self.config.training.num_train_steps if self.config else None

    @property
    def seconds(self) -> float:
        """Wall time during which something trained."""
        return sum(session.end - session.start for session in self.sessions)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the last step at the mean pace of training so far."""
        if not self.metrics or not self.total_steps or not self.metrics[-1]["step"]:
            return None
        trained = self.metrics[-1].get("train_seconds") or self.seconds
        return max(0.0, trained / self.metrics[-1]["step"] * (self.total_steps - self.step))

    @property
    def cost_usd(self) -> float | None:
        """What the supervisor has counted, else wall time at the stated price."""
        if (counted := run_log.counted_usd(self.events)) is not None:
            return counted
        return None if self.usd_per_hour is None else self.seconds / 3600 * self.usd_per_hour

    @property
    def planned_usd(self) -> float | None:
        """What the whole run will have cost at this pace, or the stated budget."""
        if self.budget_usd is not None:
            return self.budget_usd
        if self.cost_usd is None or not self.total_steps or not self.step:
            return None
        return self.cost_usd * self.total_steps / self.step


def collect(
    model_dir: str,
    now: float,
    *,
    data_dir: str | None = None,
    usd_per_hour: float | None = None,
    budget_usd: float | None = None,
) -> Run:
    """Reads one MODEL_DIR.

    Raises:
        BadInput: it holds nothing of a run.
    """
    config_path = storage.join(model_dir, "config.yaml")
    config = read_config(config_path) if storage.exists(config_path) else None
    metrics = sorted(run_log.read_metrics(model_dir), key=lambda m: m["step"])
    events = sorted(run_log.read_events(model_dir), key=lambda e: e["time"])
    heartbeat = run_log.read_heartbeat(model_dir)
    if config is None and not metrics and not events:
        raise BadInput(f"--model_dir {model_dir}: holds no run (no config.yaml, no metrics.jsonl)")
    newest = heartbeat["time"] if heartbeat else 0.0
    is_running = bool(
        heartbeat and heartbeat["state"] != "stopped" and now - newest < _FRESH_SECONDS
    )
    return Run(
        name=storage.base_name(model_dir),
        model_dir=model_dir,
        config=config,
        metrics=metrics,
        evaluations=_by_step(run_log.read_evaluations(model_dir)),
        probes=_by_step(run_log.read_probes(model_dir)),
        events=events,
        heartbeat=heartbeat,
        sessions=sessions(events, metrics, newest, is_running, now),
        checkpoints=[
            (e["time"], e.get("global_step") or 0) for e in events if e["event"] == "saved"
        ],
        data=_data(data_dir),
        is_running=is_running,
        usd_per_hour=usd_per_hour,
        budget_usd=budget_usd,
    )


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs, named by as much of their folders' paths as tells them apart: no more is shown."""
    parts = [[part for part in run.model_dir.split("/") if part] for run in runs]
    length = next(
        (n for n in range(1, 9) if len({tuple(part[-n:]) for part in parts}) == len(runs)), 1
    )
    return [
        replace(run, name="/".join(part[-length:])) for run, part in zip(runs, parts, strict=True)
    ]


def sessions(
    events: list[EventRecord],
    metrics: list[MetricsRecord],
    newest: float,
    is_running: bool,
    now: float,
) -> list[Session]:
    """The stretches of time in which something trained, from the events.

    A kill leaves no event: such a stretch ends with the last sign of life before the next start.
    """
    starts = _starts(events)
    found = []
    for number, index in enumerate(starts):
        start = events[index]["time"]
        is_last = number + 1 == len(starts)
        following = starts[number + 1] if not is_last else len(events)
        limit = events[following]["time"] if not is_last else float("inf")
        ending = next((e for e in events[index + 1 : following] if e["event"] in _ENDS), None)
        if ending is not None:
            found.append(Session(start, ending["time"], ending["event"]))
            continue
        if is_last and is_running:
            found.append(Session(start, now, None))
            continue
        signs = [m["time"] for m in metrics if start <= m["time"] < limit]
        signs += [e["time"] for e in events[index:following]]
        if is_last:
            signs.append(newest)
        found.append(Session(start, max([start, *signs]), "killed"))
    return found


def _starts(events: list[EventRecord]) -> list[int]:
    """Where the sessions of this run begin.

    A run that was killed before its first checkpoint leaves its events in the folder; where the
    next one began with other settings, those are another run's.
    """
    found: list[int] = []
    config: Any = None
    for index in reversed([i for i, e in enumerate(events) if e["event"] in _STARTS]):
        its = events[index].get("config")
        if config is not None and its != config:
            break
        if events[index]["event"] == "started":
            config = its
        found.append(index)
    return found[::-1]


def timeline_marks(run: Run) -> list[tuple[float, str, str]]:
    """What the time line shows beside sessions and checkpoints: (time, kind, text)."""
    shown = ("preempted", "interrupted", "set_aside", "finished", "created", "deleted", "diverged")
    marks = [
        (e["time"], e["event"], _event_text(e))
        for e in run.events
        if e["event"] in (*shown, "stalled", "failed")
    ]
    marks += [
        (s.end, "killed", "killed without a word") for s in run.sessions if s.ending == "killed"
    ]
    return sorted(marks)


def counts(run: Run) -> dict[str, int]:
    """How often the run was interrupted, and in which ways."""
    ends = [s.ending for s in run.sessions if s.ending not in (None, "finished")]
    preempted = sum(1 for e in run.events if e["event"] == "preempted")
    return {
        "sessions": len(run.sessions),
        "interruptions": len(ends),
        "preemptions": preempted,
        "killed": ends.count("killed"),
        "checkpoints": len(run.checkpoints),
    }


def _event_text(event: EventRecord) -> str:
    step, reason = event.get("global_step"), event.get("reason")
    parts = [event["event"]]
    if step is not None:
        parts.append(f"step {step:,}")
    if reason not in (None, event["event"]):
        parts.append(str(reason))
    return ", ".join(parts)


def _by_step(lines: list[Line]) -> list[Line]:
    """The newest line of each step, ascending."""
    newest = {line["step"]: line for line in lines}
    return [newest[step] for step in sorted(newest)]


def _data(data_dir: str | None) -> dict[str, Any] | None:
    if not data_dir:
        return None
    from bigbird_ja.data import manifest as manifest_lib

    manifest = manifest_lib.load(data_dir)
    mixed = [f"{row.name} ({row.share:.1%} of tokens)" for row in manifest.portions()]
    return {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "sequences": manifest.sequences,
        "sequence length": manifest.seq_length,
        "density": manifest.density,
        "masking": f"{manifest.masking}, {manifest.mask_unit}",
        "sources": ", ".join(mixed or manifest.source_names),
    }
