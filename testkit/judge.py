"""Runs hostile cases as real processes, each in a fresh copy of good inputs, and judges the end."""

import contextlib
import json
import os
import shutil
import stat
import zlib
from pathlib import Path

from bigbird_ja.process.errors import STATUS_OF_REASON
from testkit.hostile import Case, good_arguments

# A case that takes longer hangs; far longer than any takes, even on a machine that is busy.
PATIENCE_SECONDS = 120.0
# Address space on top of what TensorFlow takes at the start: stops who reads a device to its end.
_MEMORY = 6 * 2**30
_HASHED = 1 << 20  # bytes; of larger files size and time are compared
# Keys of results that may differ between two good runs.
_VOLATILE = frozenset({"seconds", "time", "tokens_per_second", "train_seconds", "date"})


class Judge:
    """Runs cases, each in a fresh folder with `in` and `out` in it.

    Args:
        zygote: starts the processes.
        inputs: the good ones.
        scratch: a folder to make, for the cases.
    """

    def __init__(self, zygote, inputs, scratch):
        self._zygote, self._inputs, self._scratch = zygote, inputs, scratch
        self._count = 0
        self._good = {}
        self._environ = {"HOME": str(scratch / "home")}
        (scratch / "home").mkdir(parents=True)

    def good_result(self, command):
        """Returns the results of the good invocation, without what differs from run to run."""
        if command not in self._good:
            with self._place() as place:
                ended = self._run(Case("good", command, tuple(good_arguments(command))), place)
                assert ended.status == 0, f"the good {command} fails: {ended.err[-2000:]}"
                self._good[command] = _steady(ended.result)
        return self._good[command]

    def try_case(self, case, *, same_result=False):
        """Runs one case and returns what was wrong, or None.

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
            compared = same_result and ended.status == 0 and not case.other_result
            if problem is None and compared:
                good, result = self.good_result(case.command), _steady(ended.result)
                if keys := [key for key in {**good, **result} if good.get(key) != result.get(key)]:
                    problem = f"taken as if it were good, with another {', '.join(keys[:3])}"
        return problem

    @contextlib.contextmanager
    def _place(self):
        self._count += 1
        place = self._scratch / str(self._count)
        place.mkdir()
        shutil.copytree(self._inputs, place / "in", symlinks=True)
        (place / "out").mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, case, place):
        words = [word.replace("{in}", "in").replace("{out}", "out") for word in case.arguments]
        command = self._zygote.start(
            case.command,
            *words,
            "--json",
            cwd=str(place),
            environ=self._environ,
            obeys_permissions=case.obeys_permissions,
            limits={"AS": _MEMORY},
        )
        return command.wait(PATIENCE_SECONDS)

    def _problem(self, case, ended, place, before):
        last = (ended.err.rstrip().splitlines() or [""])[-1]
        if ended.status is None:
            return f"hangs: {last}"
        if "Traceback (most recent call last)" in ended.err + ended.out:
            return f"traceback: {last[:300]}"
        if ended.status not in case.statuses:
            return f"status {ended.status}: {last[:300]}"
        return _badly_reported(ended, last) or _touched(before, _listing(place), ended.status)


def _badly_reported(ended, last):
    """Returns what is wrong with the lines that a command which failed has printed, or None."""
    if ended.status == 0:
        return None
    lines = [line for line in ended.err.splitlines() if line.startswith("bigbird-ja: ")]
    if not last.startswith("bigbird-ja: ") or len(lines) != 1 or len(last) > 1500:
        return f"not one clear line: {ended.err[-400:]!r}"
    try:
        (line,) = ended.out.splitlines()
        reason = json.loads(line)["reason"]
    except (ValueError, KeyError, TypeError):
        return f"no JSON object: {ended.out[-300:]!r}"
    if STATUS_OF_REASON.get(reason) != ended.status:
        return f"status {ended.status} with reason {reason}"
    return None


def _listing(place):
    """Lists every path below: what it is, size, time, and of small files a checksum."""
    listing = {}
    for folder, names, files in os.walk(place):
        for path in (Path(folder, name) for name in [*names, *files]):
            about = path.lstat()
            content = ()
            if stat.S_ISREG(about.st_mode):
                content = (about.st_size, about.st_mtime_ns)
                if about.st_size < _HASHED and os.access(path, os.R_OK):
                    content += (zlib.crc32(path.read_bytes()),)
            listing[str(path.relative_to(place))] = (stat.S_IFMT(about.st_mode), *content)
    return listing


def _touched(before, after, status):
    """Returns what was changed that must not be, or None.

    A command that was refused may change nothing; any other may only add, but for what `evaluate`
    appends in a MODEL_DIR.
    """
    own = ("in/model/eval", "in/model/events.jsonl")
    for name in before:
        if before[name] != after.get(name) and not (status == 0 and name.startswith(own)):
            return f"touched what was there: {name}"
    new = sorted(set(after) - set(before)) if status in (2, 71) else ()
    return f"left behind: {', '.join(new[:4])}" if new else None


def _steady(value):
    """Removes what differs between two good runs, such as `plan`'s row of this machine."""
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        kept = [item for item in value if "this machine" not in str(item)]
        return [_steady(item) for item in kept]
    return value
