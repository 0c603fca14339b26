"""Runs hostile cases as real processes, and says what is wrong with how one ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bigbird_ja.process.errors import STATUS_OF_REASON
from testkit.hostile.case import Case, good_arguments
from testkit.zygote import Ended, Zygote

# A case that takes longer hangs; far longer than any takes, even on a machine that is busy.
PATIENCE_SECONDS = 120.0
# Address space on top of what TensorFlow takes at the start: stops who reads a device to its end.
_MEMORY = 6 * 2**30
_HASHED = 1 << 20  # bytes; of larger files size and time are compared
# Of results: what may differ between two good runs.
_VOLATILE = frozenset(
    {"seconds", "time", "tokens_per_second", "train_seconds", "stalled_by_saving_seconds", "date"}
)


class Judge:
    """Runs cases, each in a fresh folder with `in` and `out` in it.

    Args:
        zygote: starts the processes.
        world: the good inputs.
        scratch: a folder to make, for the cases.
    """

    def __init__(self, zygote: Zygote, world: Path, scratch: Path) -> None:
        self._zygote, self._world, self._scratch = zygote, world, scratch
        self._count = 0
        self._good: dict[str, Any] = {}
        self._environ = {"HOME": str(scratch / "home")}
        (scratch / "home").mkdir(parents=True)

    def good_result(self, command: str) -> Any:
        """The results of the good invocation, without what differs from run to run.

        Raises:
            AssertionError: the good invocation fails.
        """
        if command not in self._good:
            with self._place() as place:
                case = Case("good", command, tuple(good_arguments(command)))
                ended = self._run(case, place)
                assert ended.status == 0, f"the good {command} fails: {ended.err[-2000:]}"
                self._good[command] = _steady(ended.result)
        return self._good[command]

    def try_case(self, case: Case, *, same_result: bool = False) -> str | None:
        """Runs one case; what was wrong, or None.

        Args:
            case: what to run.
            same_result: a case that is taken has to give the good invocation's results: what was
                damaged was not needed, or there was nothing wrong with it.
        """
        with self._place() as place:
            if case.prepare:
                case.prepare(place / "in", place / "out")
            before = _listing(place)
            ended = self._run(case, place)
            problem = self._problem(case, ended, place, before)
            if problem is None and ended.status == 0 and same_result and not case.other_result:
                result = _steady(ended.result)
                if result != self.good_result(case.command):
                    problem = f"taken as if it were good: {_difference(result, self, case.command)}"
        return problem

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        self._count += 1
        place = self._scratch / str(self._count)
        place.mkdir()
        shutil.copytree(self._world, place / "in", symlinks=True)
        (place / "out").mkdir()
        try:
            yield place
        finally:
            for folder, _, _ in os.walk(place):
                with contextlib.suppress(OSError):
                    os.chmod(folder, 0o777)
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, case: Case, place: Path) -> Ended:
        words = [word.replace("{in}", "in").replace("{out}", "out") for word in case.arguments]
        command = self._zygote.start(
            case.command, *words, "--json", cwd=str(place), environ=self._environ,
            obeys_permissions=case.obeys_permissions, limits={"AS": _MEMORY},
        )  # fmt: skip
        return command.wait(PATIENCE_SECONDS)

    def _problem(self, case: Case, ended: Ended, place: Path, before: dict[str, Any]) -> str | None:
        last = (ended.err.rstrip().splitlines() or [""])[-1]
        if ended.status is None:
            return f"hangs: {last}"
        if "Traceback (most recent call last)" in ended.err + ended.out:
            return f"traceback: {last[:300]}"
        if ended.status not in case.statuses:
            return f"status {ended.status}: {last[:300]}"
        return _badly_reported(ended, last) or _changed(before, _listing(place), ended.status)


def _badly_reported(ended: Ended, last: str) -> str | None:
    """What is wrong with the lines that a command which failed has printed, or None."""
    if ended.status == 0:
        return None
    lines = [line for line in ended.err.splitlines() if line.startswith("bigbird-ja: ")]
    if not last.startswith("bigbird-ja: ") or len(lines) != 1:
        return f"not one clear line: {ended.err[-400:]!r}"
    if len(last) > 1500:
        return f"a line of {len(last)} characters: {last[:200]}"
    try:
        (line,) = ended.out.splitlines()
        reason = json.loads(line)["reason"]
    except (ValueError, KeyError, TypeError):
        return f"no JSON object: {ended.out[-300:]!r}"
    if STATUS_OF_REASON.get(reason) != ended.status:
        return f"status {ended.status} with reason {reason}"
    return None


def _listing(place: Path) -> dict[str, Any]:
    """Every path below, what it is, its size, when it was changed, and of small files a checksum;
    links are not followed."""
    listing = {}
    for folder, names, files in os.walk(place):
        for name in [*names, *files]:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            kind = stat.S_IFMT(about.st_mode)
            is_file = stat.S_ISREG(about.st_mode)
            content = (about.st_size, about.st_mtime_ns) if is_file else ()
            if is_file and about.st_size < _HASHED and os.access(path, os.R_OK):
                content += (zlib.crc32(Path(path).read_bytes()),)
            listing[os.path.relpath(path, place)] = (kind, *content)
    return listing


def _changed(before: dict[str, Any], after: dict[str, Any], status: int) -> str | None:
    """What was touched that must not be: everything where a command was refused, and what was there
    before in any case, but for what `evaluate` adds to a MODEL_DIR."""
    own = ("in/model/eval", "in/model/events.jsonl")
    for name in before:
        if before[name] != after.get(name) and not (status == 0 and name.startswith(own)):
            return f"touched what was there: {name}"
    if status in (2, 71):
        new = sorted(set(after) - set(before))
        return f"left behind: {', '.join(new[:4])}" if new else None
    return None


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_steady(item) for item in value if not _is_measured(item)]
    return value


def _is_measured(item: Any) -> bool:
    """`plan`'s row of this machine, whose speed is measured anew."""
    return isinstance(item, dict) and item.get("accelerator") == "this machine"


def _difference(result: Any, judge: Judge, command: str) -> str:
    good = judge.good_result(command)
    keys = [key for key in {**good, **result} if good.get(key) != result.get(key)]
    return "; ".join(f"{k} is {result.get(k)!r:.80}, was {good.get(k)!r:.80}" for k in keys[:3])
