"""A sample of the generated damage: refused with one line, or not needed; nothing written.

BIGBIRD_JA_HOSTILE_SEED draws another sample; `make bench-bad-input` tries all of it. A failure
names its cases, which `--match` runs again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from bigbird_ja.cli import main
from testkit.hostile import files, folders
from testkit.hostile import world as world_lib
from testkit.hostile.case import GOOD, Case, good_arguments, sample_of
from testkit.hostile.judge import Judge
from testkit.runs import SmallRun
from testkit.zygote import Zygote

SEED = int(os.environ.get("BIGBIRD_JA_HOSTILE_SEED", "739943"))
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, small_run: SmallRun) -> Path:
    return world_lib.make(tmp_path_factory.mktemp("hostile") / "inputs", small_run)


@pytest.fixture(scope="module")
def judge(zygote: Zygote, inputs: Path) -> Judge:
    return Judge(zygote, inputs, inputs.parent / "cases")


def problems(judge: Judge, cases: Iterable[Case], *, same_result: bool = False) -> list[str]:
    """What was wrong, of all cases at once: one report is better than the first failure."""
    reports = []
    for case in cases:
        problem = judge.try_case(case, same_result=same_result)
        if problem:
            reports.append(f"{case.command} {case.name}: {problem}")
    return reports


def test_every_command_has_a_good_invocation_to_start_from() -> None:
    assert set(GOOD) == set(main.COMMANDS)


def test_files(judge: Judge, inputs: Path) -> None:
    drawn = sample_of(files.file_cases(inputs), 600, SEED)
    assert len(drawn) > 10
    assert problems(judge, drawn, same_result=True) == []


def test_folders_of_other_tools(judge: Judge) -> None:
    """As every output, MODEL_DIR and DATA_DIR: what is in them stays as it was, by checksum."""
    drawn = sample_of(folders.folder_cases(), 60, SEED)
    assert len(drawn) > 5
    assert problems(judge, drawn) == []


def test_the_judge_sees_what_is_taken_but_must_be_refused(judge: Judge) -> None:
    taken = Case("good", "sample", tuple(good_arguments("sample")))
    assert "status 0" in (judge.try_case(taken) or "")


def test_the_judge_sees_damage_that_changes_results(judge: Judge) -> None:
    def fewer_documents(inputs: Path, outputs: Path) -> None:
        lines = (inputs / "corpus.jsonl").read_text("utf-8").splitlines(keepends=True)
        (inputs / "corpus.jsonl").write_text("".join(lines[:30]), "utf-8")

    words = tuple(good_arguments("tokenize"))
    changed = Case("half a corpus", "tokenize", words, frozenset({0}), fewer_documents)
    assert judge.try_case(changed) is None
    problem = judge.try_case(changed, same_result=True)
    assert "taken as if it were good" in (problem or "")
