r"""A whole pretraining on Kaggle's free TPU, session after session, without a hand on it.

  python -m scripts.kaggle_run --kernel NAME/bigbird-ja --work_dir out/kaggle

Pushes notebooks/kaggle-v5e-8.ipynb with Kaggle's own command line (`pip install kaggle`, `kaggle
auth login`), waits for the session, brings its work home, stores it as private data sets
(NAME/SLUG-data once, NAME/SLUG-run after each session), and pushes again until the run is finished.
Waits where the week's hours are used up. WORK_DIR/output holds the newest session's output, at the
end the exported model too; WORK_DIR/state.json says how far it is: stopped at any moment, the same
command goes on, without starting a session twice.

Ends with the status of docs/troubleshooting.md: 0 finished, 2 refused, 70 diverged, 74 Kaggle or
the disk fails, 75 interrupted (the session goes on at Kaggle), 76 several sessions without
progress.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bigbird_ja.process import errors
from bigbird_ja.process.errors import BadInput, CommandError, Interrupted, Stalled, StorageError
from bigbird_ja.storage import decode, outputs
from scripts.kaggle_service import Busy, Kaggle, last_words, with_parameters

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks/kaggle-v5e-8.ipynb"
_IDLE_TRIES = 3  # sessions in a row without a step gained
_SHORTEST_HOURS = 1.0  # of a session that is worth its start-up
_KERNEL = re.compile(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]{4,44}")


@dataclass
class State:
    """How far it is; kept in WORK_DIR/state.json, written before and after whatever costs."""

    kernel: str
    settings: dict[str, Any]  # parameters of the notebook that must not change
    phase: str = "push"  # then pushing, running, store, finished
    session: str = ""  # a name of its own, which its output carries
    sessions: int = 0
    step: int = 0  # saved by the newest session
    has_data: bool = False  # as a data set
    idle: int = 0  # sessions in a row without progress


def main(arguments: list[str] | None = None) -> int:
    """Runs it to its end; the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _alone(options.work_dir):
            _check(options)
            results = Runs(options).to_the_end()
    except KeyboardInterrupt:
        return _failed(Interrupted("interrupted: the same command goes on"), options.json)
    except OSError as error:
        known = errors.classify(error) or StorageError(str(error))
        return _failed(known, options.json)
    except CommandError as error:
        return _failed(error, options.json)
    if options.json:
        print(json.dumps({**results, "reason": "finished"}))
    return 0


def _failed(error: CommandError, as_json: bool) -> int:
    print(f"kaggle_run: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps({**error.results, "reason": error.reason, "error": str(error)}))
    return error.status


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kaggle_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kernel", required=True, help="NAME/SLUG: your Kaggle name, and the notebook's")
    add("--work_dir", type=Path, required=True, help="local folder for state and outputs")
    add("--config", default="base-4096", help="preset (default: base-4096)")
    add("--settings", default="", help="more settings: '--set training.num_train_steps=200000'")
    add("--input", default="tfds:wiki40b/ja", help="text, as the notebook's session sees it")
    add("--source", default="", help="a wheel, or what pip takes (default: this checkout)")
    add("--hours_per_session", type=float, default=9.0, help="as of 2026-09: kaggle.com/docs")
    add("--accelerator", default="TpuV5E8", help="of `kaggle kernels push`")
    add("--max_sessions", type=int, default=100, help="ends with 76 after so many")
    add("--poll_seconds", type=float, default=60.0, help="between two questions to Kaggle")
    add("--json", action="store_true", help="results as one line of JSON on standard output")
    return parser


def _check(options: argparse.Namespace) -> None:
    if not _KERNEL.fullmatch(options.kernel):
        raise BadInput(
            f"--kernel {options.kernel}: write it as NAME/SLUG, in small letters, digits and '-',"
            " the second part of 5 to 45"
        )
    for name in ("hours_per_session", "poll_seconds", "max_sessions"):
        if not 0 < getattr(options, name) < 1e6:
            raise BadInput(f"--{name} {getattr(options, name):g}: give a number above 0")
    if options.source and options.source.endswith(".whl") and not Path(options.source).is_file():
        raise BadInput(f"--source {options.source}: no such file")


@contextlib.contextmanager
def _alone(work_dir: Path) -> Iterator[None]:
    """The folder, for this process alone."""
    outputs.check_folder_place(str(work_dir), "--work_dir")
    work_dir.mkdir(parents=True, exist_ok=True)
    with open(work_dir / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"--work_dir {work_dir}: another kaggle_run is at work there") from error
        yield


class Runs:
    """Session after session; each phase may be left and taken up again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._dir = options, options.work_dir
        pause = min(10.0, options.poll_seconds)
        self._kaggle = Kaggle(_log, time.sleep, pause)
        self._state = self._load()

    def to_the_end(self) -> dict[str, Any]:
        """The results once the run is finished.

        Raises:
            CommandError: every other end.
        """
        phases = {"push": self._push, "pushing": self._pushing, "running": self._running,
                  "store": self._store}  # fmt: skip
        while self._state.phase != "finished":
            phases[self._state.phase]()
        state, output = self._state, self._dir / "output"
        _log(f"finished: step {state.step:,} after {state.sessions} sessions, in {output}")
        return {"global_step": state.step, "sessions": state.sessions, "output": str(output)}

    def _load(self) -> State:
        options, path = self._options, self._dir / "state.json"
        settings = {"CONFIG": options.config, "SETTINGS": options.settings, "INPUT": options.input}
        if not path.exists():
            return State(options.kernel, settings)
        found = decode.read_json(str(path), State)
        for what, old, new in (("kernel", found.kernel, options.kernel),
                               ("settings", found.settings, settings)):  # fmt: skip
            if old != new:
                raise BadInput(
                    f"--work_dir {self._dir} holds another run ({what}: {old} -> {new}): choose"
                    " another folder and another --kernel"
                )
        _log(f"goes on: {found.sessions} sessions, step {found.step:,}, next: {found.phase}")
        return found

    def _save(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self._state, name, value)
        new = self._dir / "state.json.new"
        new.write_text(json.dumps(asdict(self._state), indent=1))
        new.replace(self._dir / "state.json")

    def _push(self) -> None:
        """Starts a session, once Kaggle lends one."""
        state = self._state
        if state.sessions >= self._options.max_sessions:
            raise Stalled(
                f"not finished after --max_sessions {state.sessions}: step {state.step:,}"
            )
        if not state.sessions and self._brings_wheel:
            self._store_wheel()
        hours = self._wait_for_hours()
        self._save(phase="pushing", session=uuid.uuid4().hex)
        self._start(hours)

    def _start(self, hours: float) -> None:
        state = self._state
        folder = self._notebook(hours)
        while True:
            try:
                self._kaggle.push(folder, self._options.accelerator)
                break
            except Busy as error:
                _log(f"Kaggle lends no TPU now ({error}): waits")
                time.sleep(10 * self._options.poll_seconds)
        self._save(phase="running", sessions=state.sessions + 1)
        _log(f"session {state.sessions} of {state.kernel} pushed, from step {state.step:,}")

    def _pushing(self) -> None:
        """The script was stopped while it pushed: did the session start?"""
        try:
            status, _ = self._kaggle.status(self._state.kernel)
        except BadInput:  # there is no such notebook yet
            status = "none"
        if status in ("queued", "running", "newscript") or self._is_ours():
            self._save(phase="running", sessions=self._state.sessions + 1)
        else:
            self._start(self._wait_for_hours())

    def _is_ours(self) -> bool:
        """Whether the newest output is of the session that this run wants."""
        with contextlib.suppress(CommandError):
            return self._fetch().get("session") == self._state.session
        return False

    def _wait_for_hours(self) -> float:
        """Hours of the next session: waits where too few are left of the week."""
        while quota := self._kaggle.quota():
            if quota.hours >= _SHORTEST_HOURS:
                return min(self._options.hours_per_session, quota.hours)
            until = f" until {quota.refreshes:%Y-%m-%d %H:%M %Z}" if quota.refreshes else ""
            _log(f"{quota.hours:g} TPU hours are left of the week: waits{until}")
            self._sleep_until(quota.refreshes)
        return self._options.hours_per_session

    def _sleep_until(self, when: datetime | None) -> None:
        poll = 10 * self._options.poll_seconds
        left = (when - datetime.now(timezone.utc)).total_seconds() if when else poll
        time.sleep(min(max(left, poll), 6 * 3600))

    def _notebook(self, hours: float) -> Path:
        """A folder as `kaggle kernels push` wants it."""
        state, name = self._state, self._state.kernel.partition("/")[2]
        stored = [f"{state.kernel}-data"] if state.has_data else []
        stored += [f"{state.kernel}-run"] if state.step else []
        stored += [f"{state.kernel}-wheel"] if self._brings_wheel else []
        folder = self._dir / "push"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        source = "bigbird-ja" if self._brings_wheel else self._options.source
        values = {**state.settings, "HOURS_PER_SESSION": round(hours, 2), "SESSION": state.session,
                  "COUNTS_SESSIONS": not state.sessions, "EXPECTED_STEP": state.step,
                  "SOURCE": source}  # fmt: skip
        notebook = with_parameters(json.loads(NOTEBOOK.read_text(encoding="utf-8")), values)
        (folder / "notebook.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
        about = {
            "id": state.kernel, "title": name, "code_file": "notebook.ipynb", "language": "python",
            "kernel_type": "notebook", "is_private": True, "enable_tpu": True,
            "enable_internet": True, "dataset_sources": stored,
        }  # fmt: skip
        (folder / "kernel-metadata.json").write_text(json.dumps(about))
        return folder

    def _running(self) -> None:
        """Waits for the session's end and brings its work home."""
        state, before = self._state, ""
        while True:
            status, why = self._kaggle.status(state.kernel)
            if status != before:
                _log(f"session {state.sessions}: {status}")
            if status in ("complete", "error", "cancelacknowledged"):
                break
            before = status
            time.sleep(self._options.poll_seconds)
        if status == "complete":
            self._take(self._fetch())
        else:
            self._lost(f"{status}: {why}" if why else status)

    def _fetch(self) -> dict[str, Any]:
        """Downloads the newest output, whole: what its files.json says.

        Raises:
            StorageError: files are missing or cut.
        """
        partial = self._dir / "output.partial"
        for _ in range(3):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            self._kaggle.output(self._state.kernel, partial)
            found = next(partial.rglob("files.json"), None)
            if found is None:
                raise StorageError(
                    f"the session's output has no files.json ({last_words(partial)}): is `kaggle`"
                    " new enough to download all of it? pip install --upgrade kaggle"
                )
            content = decode.read_json(str(found), dict[str, Any])
            root = found.parent
            wrong = [
                name for name, size in content["files"].items()
                if not (root / name).is_file() or (root / name).stat().st_size != size
            ]  # fmt: skip
            if not wrong:
                return {**content, "root": root}
            _log(f"{len(wrong)} files did not arrive whole, such as {wrong[0]}: again")
        raise StorageError(f"{wrong[0]} of the session's output does not arrive whole: run again")

    def _take(self, found: Mapping[str, Any]) -> None:
        """What a session that came to its end left."""
        state = self._state
        if found.get("session") != state.session:
            raise BadInput(
                f"the newest session of {state.kernel} was not pushed by this run: is the notebook"
                " used by hand too? Take another --kernel and --work_dir"
            )
        result = decode.read_json(str(found["root"] / "session.json"), dict[str, Any])
        step, reason = int(result.get("global_step") or 0), str(result["reason"])
        _log(f"session {state.sessions}: {reason} at step {step:,}")
        if reason in ("bad_input", "diverged", "out_of_memory"):
            raise errors.of_reason(reason, f"session {state.sessions}: {result.get('error', '')}")
        if reason not in ("finished", "interrupted") or step <= state.step:
            self._lost(f"{reason} at step {step:,}")
            return
        output = self._dir / "output"
        shutil.rmtree(output, ignore_errors=True)
        found["root"].rename(output)
        self._save(phase="finished" if reason == "finished" else "store", step=step, idle=0)

    def _lost(self, why: str) -> None:
        """A session from which nothing came: the next one begins where it did.

        Raises:
            CommandError: it would end in the same way again.
        """
        state = self._state
        with contextlib.suppress(CommandError):
            self._kaggle.output(state.kernel, self._dir / "output.partial")
        words = last_words(self._dir / "output.partial")
        text = f"session {state.sessions} of {state.kernel} brought nothing ({why}): {words}"
        self._save(phase="push", idle=state.idle + 1)
        if "ended with status 2:" in words:
            raise BadInput(text)
        if state.idle >= _IDLE_TRIES:
            self._save(idle=0)
            raise Stalled(f"{text}; {_IDLE_TRIES} sessions in a row without progress: run again")
        _log(text)

    def _store(self) -> None:
        """Stores the work where the next session finds it."""
        state, output = self._state, self._dir / "output"
        if not state.has_data:
            self._upload("data", sorted(p for p in (output / "data").iterdir() if p.is_file()))
            self._save(has_data=True)
        self._upload("run", [output / "model"])
        self._save(phase="push")

    @property
    def _brings_wheel(self) -> bool:
        """Whether what is installed is a file from here."""
        return not self._options.source or self._options.source.endswith(".whl")

    def _store_wheel(self) -> None:
        if self._options.source:
            self._upload("wheel", [Path(self._options.source)])
            return
        folder = self._dir / "wheel"
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
        done = subprocess.run(
            [*command, str(NOTEBOOK.parent.parent)], capture_output=True, text=True
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise BadInput(f"no wheel could be made of this checkout: {last}; give --source")
        self._upload("wheel", list(folder.iterdir()))

    def _upload(self, kind: str, paths: list[Path]) -> None:
        """A data set of files; a folder goes as one archive."""
        name, folder = f"{self._state.kernel}-{kind}", self._dir / "upload"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in paths:
            if path.is_dir():
                with tarfile.open(folder / f"{kind}.tar", "w") as archive:
                    archive.add(path, path.name)
            else:
                (folder / path.name).hardlink_to(path)
        _log(f"stores {name}")
        self._kaggle.store(folder, name, f"step {self._state.step}")
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
