"""Kaggle by its command line: what `kaggle_run` asks of it, and what its answers mean.

Read from Kaggle/kaggle-cli of July 2026 (docs/ and kaggle_api_extended.py). A refused push or
upload is said on standard output with exit status 0, so the words are read as well as the status.
Nothing here keeps state: every call may be repeated.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigbird_ja.process.errors import BadInput, StorageError

_TRIES = 6  # of a call that fails for a reason that may pass
_CALL_SECONDS = 3 * 3600.0  # an upload of gigabytes over a home line
_BUSY = re.compile(r"quota|maximum .*session", re.IGNORECASE)
_CREDENTIALS = re.compile(r"401|unauthorized|authenticat|credentials|kaggle\.json", re.IGNORECASE)
_REFUSED = re.compile(r"\b(400|403|404)\b|not found|invalid|permission", re.IGNORECASE)

Sleep = Callable[[float], None]


class Busy(Exception):
    """Kaggle lends no machine now: the week's hours are used up, or too many sessions run."""


@dataclass(frozen=True)
class Quota:
    """What is left of the week."""

    hours: float
    refreshes: datetime.datetime | None  # when the next week's come


@dataclass(frozen=True)
class Kaggle:
    """Calls the `kaggle` executable on the PATH.

    Args:
        log: for people.
        sleep: seconds.
        pause: before the second try of a call that failed; it doubles from try to try. Seconds.
    """

    log: Callable[[str], None]
    sleep: Sleep
    pause: float = 10.0

    def push(self, folder: Path, accelerator: str) -> None:
        """Starts a session of the notebook in `folder`.

        Raises:
            Busy: not now.
            BadInput: refused; StorageError: Kaggle cannot be reached.
        """
        said = self._call("kernels", "push", "-p", str(folder), "--accelerator", accelerator)
        if "Kernel push error" in said:
            reason = said.partition("Kernel push error:")[2].strip()
            if _BUSY.search(reason):
                raise Busy(reason)
            raise BadInput(f"Kaggle refuses the notebook: {_one_line(reason)}")
        if "not valid dataset sources" in said:
            raise BadInput(
                "Kaggle did not attach the data sets to the notebook: look at them on its page,"
                " stop the session there, and run again"
            )

    def status(self, kernel: str) -> tuple[str, str]:
        """(state of the newest session, why it failed): the state in lower case, without
        separators: queued, running, complete, error, cancelacknowledged, ..."""
        said = self._call("kernels", "status", kernel)
        found = re.search(r'has status "(?:\w+\.)?(\w+)"', said)
        if not found:
            raise StorageError(f"`kaggle kernels status` says something new: {_one_line(said)}")
        why = re.search(r'Failure message: "(.*)"', said, re.DOTALL)
        return found[1].replace("_", "").lower(), _one_line(why[1]) if why else ""

    def output(self, kernel: str, folder: Path) -> None:
        """Downloads what the newest session left, and its log (SLUG.log)."""
        self._call("kernels", "output", kernel, "-p", str(folder), "-q")

    def quota(self) -> Quota | None:
        """The week's TPU hours; None where this version of the command cannot say."""
        done = _run("quota", "--csv")
        rows = csv.DictReader(io.StringIO(done.stdout))
        for row in rows if done.returncode == 0 else ():
            if row.get("resource") == "TPU" and row.get("remaining"):
                when = row.get("refreshAt") or ""
                return Quota(float(row["remaining"].rstrip("h")), _time(when))
        return None

    def store(self, folder: Path, name: str, note: str) -> None:
        """Makes `folder` the newest version of the data set `name`, and waits until it is ready."""
        about = {"id": name, "title": name.partition("/")[2], "licenses": [{"name": "other"}]}
        (folder / "dataset-metadata.json").write_text(json.dumps(about))
        where = ("-p", str(folder), "-q", "-t")
        if self._has(name):
            said = self._call("datasets", "version", *where, "-m", note, "-d")
        else:
            said = self._call("datasets", "create", *where)
        if "error" in said.lower():
            raise StorageError(f"Kaggle did not take the data set {name}: {_one_line(said)}")
        while (state := self._call("datasets", "status", name).strip().lower()) != "ready":
            if state in ("error", "failed", "deleted"):
                raise StorageError(
                    f"Kaggle could not make the data set {name} ({state}): run again"
                )
            self.sleep(self.pause)

    def _has(self, name: str) -> bool:
        try:
            self._call("datasets", "status", name)
        except BadInput:
            return False
        return True

    def _call(self, *words: str) -> str:
        """What it prints on standard output.

        Raises:
            BadInput: no such command, no credentials, or what was asked for is refused.
            StorageError: it fails again and again.
        """
        pause, said = self.pause, ""
        for attempt in range(_TRIES):
            done = _run(*words)
            if done.returncode == 0:
                return done.stdout
            said = _one_line(done.stderr.strip() or done.stdout)
            if _CREDENTIALS.search(said):
                raise BadInput(f"kaggle has no valid credentials: `kaggle auth login` ({said})")
            if _REFUSED.search(said):
                raise BadInput(f"`kaggle {' '.join(words[:2])}` is refused: {said}")
            if attempt < _TRIES - 1:
                self.log(f"kaggle {' '.join(words[:2])}: {said}: again in {pause:g} s")
                self.sleep(pause)
                pause *= 2
        raise StorageError(f"`kaggle {' '.join(words[:2])}` keeps failing: {said}: run again")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["kaggle", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_CALL_SECONDS,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise BadInput("there is no `kaggle` on the PATH: pip install kaggle") from error
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"`kaggle {' '.join(words[:2])}` does not end: run again") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300] or "it says nothing"


def _time(text: str) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.timezone.utc)


def with_parameters(notebook: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook with other values in its parameters cell.

    Raises:
        KeyError: a name that the cell does not have.
    """
    (cell,) = [c for c in notebook["cells"] if c["metadata"].get("tags") == ["parameters"]]
    text = "".join(cell["source"])
    for name, value in values.items():
        lines = text.splitlines()
        places = [n for n, line in enumerate(lines) if line.startswith(f"{name} = ")]
        if len(places) != 1:
            raise KeyError(name)
        lines[places[0]] = f"{name} = {value!r}"
        text = "\n".join(lines)
    cell["source"] = text.splitlines(keepends=True)
    return notebook


def last_words(folder: Path) -> str:
    """What the session's log says of its end: the line of an error, else the last one."""
    for path in folder.rglob("*.log"):
        text = path.read_text(errors="replace")
        with contextlib.suppress(ValueError):  # lines, or records with a "data" each
            text = "".join(str(record.get("data", "")) for record in json.loads(text))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = [line for line in lines if re.match(r"bigbird-ja: |\w*Error: ", line)]
        if told or lines:
            return " / ".join((told or lines)[-2:])
    return "it left no log"
