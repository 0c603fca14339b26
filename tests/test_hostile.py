"""A sample of the generated damage: refused with one line, or not needed; nothing written.

BIGBIRD_JA_HOSTILE_SEED draws another sample; `make bench-bad-input` tries all of it.
"""

import os

import pytest

from bigbird_ja.cli import main
from testkit import hostile
from testkit.hostile import Case, good_arguments, sample_of
from testkit.judge import Judge

SEED = int(os.environ.get("BIGBIRD_JA_HOSTILE_SEED", "739943"))
ALL = "BIGBIRD_JA_HOSTILE_ALL" in os.environ
pytestmark = pytest.mark.timeout(100_000 if ALL else 1200)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, small_run):
    return hostile.make_inputs(tmp_path_factory.mktemp("hostile") / "inputs", small_run)


@pytest.fixture(scope="module")
def judge(zygote, inputs):
    return Judge(zygote, inputs, inputs.parent / "cases")


def problems(judge, cases, *, same_result=False):
    """What was wrong, of all cases at once: one report is better than the first failure."""
    return [
        f"{case.command} {case.name}: {problem}"
        for case in cases
        if (problem := judge.try_case(case, same_result=same_result))
    ]


def test_every_command_that_reads_files_has_a_good_invocation_to_start_from():
    asks_a_service_or_this_machine = {"status", "logs", "down", "doctor"}
    assert set(main.COMMANDS) - set(hostile.GOOD) == asks_a_service_or_this_machine


def test_files(judge, inputs):
    drawn = sample_of(hostile.file_cases(inputs), 1 if ALL else 300, SEED)
    assert len(drawn) > 10
    assert problems(judge, drawn, same_result=True) == []


def test_folders_of_other_tools(judge):
    """As every output, MODEL_DIR and DATA_DIR: what is in them stays as it was, by checksum."""
    drawn = sample_of(hostile.folder_cases(), 1 if ALL else 60, SEED)
    assert len(drawn) > 5
    assert problems(judge, drawn) == []


def test_the_judge_sees_what_is_taken_but_must_be_refused(judge):
    taken = Case("good", "sample", tuple(good_arguments("sample")))
    assert "status 0" in (judge.try_case(taken) or "")


def test_the_judge_sees_damage_that_changes_results(judge):
    def fewer_documents(inputs, outputs):
        lines = (inputs / "corpus.jsonl").read_text("utf-8").splitlines(keepends=True)
        (inputs / "corpus.jsonl").write_text("".join(lines[:30]), "utf-8")

    words = tuple(good_arguments("tokenize"))
    changed = Case("half a corpus", "tokenize", words, frozenset({0}), fewer_documents)
    assert judge.try_case(changed) is None
    problem = judge.try_case(changed, same_result=True)
    assert "taken as if it were good" in (problem or "")
