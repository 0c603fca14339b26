"""What a run's own files say about it, read once and put in order for the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bigbird_ja import config as config_lib
from bigbird_ja import storage
from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput
from bigbird_ja.run import log as run_log

Record = dict[str, Any]

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
    metrics: list[Record]
    evaluations: list[Record]
    probes: list[Record]
    events: list[Record]
    heartbeat: Record | None
    sessions: list[Session]
    checkpoints: list[tuple[float, int]]  # (UNIX seconds, step)
    data: Record | None = None  # of the manifest
    is_running: bool = False
    usd_per_hour: float | None = None
    budget_usd: float | None = None

    @property
    def step(self) -> int:
        """The newest step that anything tells of."""
        seen = [self.metrics[-1]["step"]] if self.metrics else [0]
        if self.heartbeat:
            seen.append(int(self.heartbeat.get("global_step") or 0))
        return max(seen)

    @property
    def total_steps(self) -> int | None:
        """Steps in all."""
        if self.heartbeat and self.heartbeat.get("num_train_steps"):
            return int(self.heartbeat["num_train_steps"])
        return self.config.training.num_train_steps if self.config else None

    @property
    def seconds(self) -> float:
        """Wall time during which something trained."""
        return sum(session.end - session.start for session in self.sessions)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the last step at the mean pace of training so far."""
        if not self.metrics or not self.total_steps or not self.step:
            return None
        trained = self.metrics[-1].get("train_seconds") or self.seconds
        return max(0.0, float(trained) / self.metrics[-1]["step"] * (self.total_steps - self.step))

    @property
    def cost_usd(self) -> float | None:
        """What the supervisor has counted, else wall time at the stated price."""
        counted = [e["cost_usd"] for e in self.events if _is_number(e.get("cost_usd"))]
        if counted:
            return float(counted[-1])
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
    config = config_lib.load_resolved(config_path) if storage.exists(config_path) else None
    metrics = sorted(
        (m for m in run_log.read_metrics(model_dir) if _is_number(m.get("step"))),
        key=lambda m: m["step"],
    )
    events = sorted(run_log.read_events(model_dir), key=lambda e: float(e.get("time") or 0))
    heartbeat = run_log.read_heartbeat(model_dir)
    if config is None and not metrics and not events:
        raise BadInput(f"--model_dir {model_dir}: holds no run (no config.yaml, no metrics.jsonl)")
    lines = run_log.read_lines(storage.join(model_dir, run_log.EVAL))
    newest = float((heartbeat or {}).get("time") or 0)
    is_running = bool(
        heartbeat and heartbeat.get("state") != "stopped" and now - newest < _FRESH_SECONDS
    )
    return Run(
        name=model_dir.rstrip("/").rpartition("/")[2],
        model_dir=model_dir,
        config=config,
        metrics=metrics,
        evaluations=_by_step([e for e in lines if "masked_lm_loss" in e]),
        probes=_by_step([e for e in lines if "probe" in e]),
        events=events,
        heartbeat=heartbeat,
        sessions=sessions(events, metrics, newest, is_running, now),
        checkpoints=[
            (float(e["time"]), int(e.get("global_step") or 0))
            for e in events
            if e.get("event") == "saved"
        ],
        data=_data(data_dir),
        is_running=is_running,
        usd_per_hour=usd_per_hour,
        budget_usd=budget_usd,
    )


def sessions(
    events: list[Record], metrics: list[Record], newest: float, is_running: bool, now: float
) -> list[Session]:
    """When something trained, by the events; a kill leaves none, but nothing logs after it."""
    starts = [i for i, e in enumerate(events) if e.get("event") in _STARTS]
    found = []
    for number, index in enumerate(starts):
        start = float(events[index]["time"])
        is_last = number + 1 == len(starts)
        following = starts[number + 1] if not is_last else len(events)
        limit = float(events[following]["time"]) if not is_last else float("inf")
        ending = next((e for e in events[index + 1 : following] if e.get("event") in _ENDS), None)
        if ending is not None:
            found.append(Session(start, float(ending["time"]), str(ending["event"])))
            continue
        if is_last and is_running:
            found.append(Session(start, now, None))
            continue
        signs = [float(m["time"]) for m in metrics if start <= float(m.get("time") or 0) < limit]
        signs += [float(e["time"]) for e in events[index:following]]
        if is_last:
            signs.append(newest)
        found.append(Session(start, max([start, *signs]), "killed"))
    return found


def timeline_marks(run: Run) -> list[tuple[float, str, str]]:
    """What the time line shows beside sessions and checkpoints: (time, kind, text)."""
    shown = ("preempted", "interrupted", "set_aside", "finished", "created", "deleted", "diverged")
    marks = [
        (float(e["time"]), str(e["event"]), _event_text(e))
        for e in run.events
        if e.get("event") in (*shown, "stalled", "failed")
    ]
    marks += [
        (s.end, "killed", "killed without a word") for s in run.sessions if s.ending == "killed"
    ]
    return sorted(marks)


def counts(run: Run) -> dict[str, int]:
    """How often the run was interrupted, and in which ways."""
    ends = [s.ending for s in run.sessions if s.ending not in (None, "finished")]
    preempted = sum(1 for e in run.events if e.get("event") == "preempted")
    return {
        "sessions": len(run.sessions),
        "interruptions": len(ends),
        "preemptions": preempted,
        "killed": ends.count("killed"),
        "checkpoints": len(run.checkpoints),
    }


def _event_text(event: Record) -> str:
    step = event.get("global_step")
    parts = [str(event["event"])]
    if step is not None:
        parts.append(f"step {int(step):,}")
    if event.get("reason") not in (None, event["event"]):
        parts.append(str(event["reason"]))
    return ", ".join(parts)


def _by_step(lines: list[Record]) -> list[Record]:
    """The newest line of each step, ascending."""
    return [r for _, r in sorted({int(line["step"]): line for line in lines}.items())]


def _data(data_dir: str | None) -> Record | None:
    if not data_dir:
        return None
    from bigbird_ja.data import manifest as manifest_lib

    manifest = manifest_lib.load(data_dir)
    return {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "sequences": manifest.sequences,
        "sequence length": manifest.seq_length,
        "density": manifest.density,
        "masking": f"{manifest.masking}, {manifest.mask_unit}",
        "sources": ", ".join(manifest.sources),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
