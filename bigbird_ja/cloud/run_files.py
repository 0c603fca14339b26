"""The files by which trainer, supervisor and start-up script know of each other.

BUCKET/NAME/model/       what `pretrain` writes: `heartbeat.json` is its pulse; `events.jsonl`
                         tells the run's whole story, the supervisor's part included
BUCKET/NAME/supervisor/  launch.json, config.yaml, state.json, lock.json: the supervisor's;
                         exit.json, training.log: the start-up script's, from the TPU VM
BUCKET/packages/HASH/    wheels by content
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bigbird_ja import storage
from bigbird_ja.cloud.run_state import ExitReport, Heartbeat, RunState
from bigbird_ja.errors import BadInput
from bigbird_ja.run import log as run_log

_STATUS_REASONS = {
    0: "finished", 2: "bad_input", 70: "diverged", 71: "out_of_memory", 74: "io_error",
    75: "interrupted", 76: "stalled", 137: "killed", 143: "interrupted",
}  # fmt: skip


class RunFiles(Protocol):
    """What the supervisor reads and writes. Errors of the bucket pass through."""

    def heartbeat(self) -> Heartbeat | None: ...
    def exit_report(self) -> ExitReport | None: ...
    def log_tail(self) -> str: ...
    def load_state(self) -> RunState | None: ...
    def save_state(self, state: RunState) -> None: ...
    def append_event(self, event: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class RunPaths:
    """Where everything of one run lies."""

    bucket: str
    name: str

    @property
    def run_dir(self) -> str:
        return storage.join(self.bucket, self.name)

    @property
    def model_dir(self) -> str:
        return storage.join(self.run_dir, "model")

    def supervisor(self, name: str) -> str:
        """A file of the supervisor's own folder."""
        return storage.join(self.run_dir, "supervisor", name)


class BucketFiles:
    """`RunFiles` on a bucket, or a local directory."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def prepare(self) -> None:
        """Makes the folders (on a disk; a bucket needs none)."""
        storage.make_directory(storage.join(self._paths.run_dir, "supervisor"))
        storage.make_directory(self._paths.model_dir)

    def heartbeat(self) -> Heartbeat | None:
        values = read_json(storage.join(self._paths.model_dir, "heartbeat.json"))
        return None if values is None else parse_heartbeat(values)

    def exit_report(self) -> ExitReport | None:
        values = read_json(self._paths.supervisor("exit.json"))
        if values is None:
            return None
        status = int(values.get("status", 1))
        return ExitReport(
            int(values.get("attempt", 0)),
            status,
            str(values.get("reason") or _STATUS_REASONS.get(status, "bug")),
            bool(values.get("self_deleted", False)),
        )

    def log_tail(self) -> str:
        try:
            text = storage.read_bytes(self._paths.supervisor("training.log"))
        except FileNotFoundError:
            return ""
        return "\n".join(text.decode("utf-8", "replace").splitlines()[-20:])

    def load_state(self) -> RunState | None:
        values = read_json(self._paths.supervisor("state.json"))
        return None if values is None else RunState.from_json(values)

    def save_state(self, state: RunState) -> None:
        text = json.dumps(state.to_json(), ensure_ascii=False)
        storage.write_bytes(self._paths.supervisor("state.json"), text.encode())

    def append_event(self, event: Mapping[str, Any]) -> None:
        # Trainer and supervisor tell one story in one file; appending is guarded on both sides.
        run_log.append_line(storage.join(self._paths.model_dir, run_log.EVENTS), dict(event))


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no file, or no JSON object in it.

    A file that is being written on a disk of another kind may be cut: the next look finds it whole.
    """
    try:
        values = json.loads(storage.read_bytes(path))
    except (FileNotFoundError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def parse_heartbeat(values: Mapping[str, Any]) -> Heartbeat:
    """From `heartbeat.json`; missing numbers are 0."""
    return Heartbeat(
        int(values.get("global_step") or 0),
        float(values.get("time") or 0.0),
        str(values.get("state") or ""),
        str(values.get("reason") or ""),
        float(values.get("tokens_per_second") or 0.0),
        str(values.get("host") or ""),
        int(values.get("pid") or 0),
    )


def check_name(name: str | None) -> str:
    """A run's name is a TPU's name, a label and a folder.

    Raises:
        BadInput: no name, or characters that one of these does not take.
    """
    if not name:
        raise BadInput("--name is needed: lower-case letters, digits and dashes, such as base-1")
    good = name[0].isascii() and name[0].islower() and not name.endswith("-") and len(name) <= 40
    if not good or any(
        not (c.isascii() and (c.islower() or c.isdigit() or c == "-")) for c in name
    ):
        raise BadInput(
            f"--name={name!r}: at most 40 lower-case letters, digits and dashes, beginning with a"
            " letter, not ending with a dash"
        )
    return name
