"""Bad input of every kind, refused with one line and nothing written: `make bench-bad-input`.

    python -m scripts.bench_bad_input                                 # all: hours on two cores
    python -m scripts.bench_bad_input --share=20                      # one case in twenty
    python -m scripts.bench_bad_input --kind=files --match='export model/config.yaml'

Cases are damaged files and folders of other tools (testkit/hostile). Prints what was wrong with
each, then how many ended as they must; exits with 1 unless all did.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from absl import app, flags

from bigbird_ja.data import prepare_tensorflow
from bigbird_ja.process import console
from testkit import command_line, runs
from testkit.hostile import files, folders
from testkit.hostile import world as world_lib
from testkit.hostile.case import Case, sample_of
from testkit.hostile.judge import Judge
from testkit.zygote import Zygote

_KINDS = ("files", "folders")
_KIND = flags.DEFINE_multi_enum("kind", list(_KINDS), list(_KINDS), "Which cases (repeatable).")
_MATCH = flags.DEFINE_string("match", "", "Only cases whose 'COMMAND NAME' holds this.")
_SHARE = flags.DEFINE_integer("share", 1, "Tries one case in so many.")
_SEED = flags.DEFINE_integer("seed", 1, "Which ones.")
_JOBS = flags.DEFINE_integer("jobs", 2, "Cases at a time.")

Row = tuple[str, str, str | None, float]  # kind, command, problem, seconds


def main(argv: list[str]) -> int:
    """Tries all, prints the table."""
    del argv
    prepare_tensorflow(os.environ)
    with tempfile.TemporaryDirectory(prefix="bad-input-") as scratch:
        place = Path(scratch)
        run = _small_run(place)
        rows = _try_generated(place, world_lib.make(place / "inputs", run))
    return _report(rows)


def _try_generated(place: Path, inputs: Path) -> list[Row]:
    makers: dict[str, Callable[[], Iterable[Case]]] = {
        "files": lambda: files.file_cases(inputs),
        "folders": folders.folder_cases,
    }
    cases = [
        (kind, case)
        for kind, make in makers.items()
        if kind in _KIND.value
        for case in sample_of(iter(make()), _SHARE.value, _SEED.value)
        if _MATCH.value in f"{case.command} {case.name}"
    ]
    with contextlib.ExitStack() as stack:
        judges: queue.Queue[Judge] = queue.Queue()
        for number in range(_JOBS.value):
            judges.put(_judge(stack, place / f"judge-{number}", inputs))
        progress = stack.enter_context(console.Progress(len(cases), "cases"))

        def one(kind: str, case: Case) -> Row:
            judge, start = judges.get(), time.monotonic()
            try:
                problem = judge.try_case(case, same_result=kind == "files")
            finally:
                judges.put(judge)
            _say(f"{case.command} {case.name}", problem)
            progress.update()
            return kind, case.command, problem, time.monotonic() - start

        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(_JOBS.value))
        return list(pool.map(lambda pair: one(*pair), cases))


def _judge(stack: contextlib.ExitStack, place: Path, inputs: Path) -> Judge:
    (place / "commands").mkdir(parents=True)
    zygote = stack.enter_context(Zygote(place / "commands", os.environ))
    return Judge(zygote, inputs, place / "cases")


def _say(case: str, problem: str | None) -> None:
    if problem is not None:
        console.log(f"{case.encode('ascii', 'backslashreplace').decode()}: {problem}")


def _report(outcomes: list[Row]) -> int:
    tried: collections.Counter[tuple[str, str]] = collections.Counter()
    right: collections.Counter[tuple[str, str]] = collections.Counter()
    for kind, command, problem, _ in outcomes:
        tried[kind, command] += 1
        right[kind, command] += problem is None
    rows = [(kind, command, right[kind, command], n) for (kind, command), n in tried.items()]
    for kind in _KINDS:
        of_kind = [row for row in rows if row[0] == kind]
        if of_kind:
            rows.append((kind, "all", sum(r[2] for r in of_kind), sum(r[3] for r in of_kind)))
    rows.append(("all", "all", right.total(), tried.total()))
    print(console.table(rows, ("kind", "command", "ended as they must", "tried")))
    slow = sum(seconds > 10 for *_, seconds in outcomes)
    print(f"longer than 10 seconds on this machine: {slow}")
    return int(right != tried)


def _small_run(place: Path) -> runs.SmallRun:
    corpus, prefix = str(place / "corpus.jsonl"), str(place / "ja")
    for arguments in (
        ["sample", f"--output={corpus}", "--documents=60"],
        ["tokenize", f"--input={corpus}", f"--output_prefix={prefix}", "--vocab_size=1200"],
    ):
        ended = command_line.run_cli(*arguments)
        if ended.status:
            raise SystemExit(ended.stderr)
    return runs.make(place, corpus, f"{prefix}.model")


if __name__ == "__main__":
    app.run(main)
