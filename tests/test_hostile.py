"""A sample of the generated damage: refused with one line, or not needed; nothing written.

BIGBIRD_JA_HOSTILE_SEED draws another sample; `make bench-bad-input` tries all of it.
"""

import os

import pytest

from bigbird_ja.cli import main
from testkit import hostile

SEED = int(os.environ.get("BIGBIRD_JA_HOSTILE_SEED", "739943"))
ALL = "BIGBIRD_JA_HOSTILE_ALL" in os.environ


def test_every_command_that_reads_files_has_a_good_invocation_to_start_from():
    asks_a_service_or_this_machine = {"status", "logs", "down", "doctor"}
    assert set(main.COMMANDS) - set(hostile.GOOD) == asks_a_service_or_this_machine


@pytest.mark.timeout(100_000 if ALL else 1200)
def test_files(zygote, small_run, tmp_path):
    """All cases at once: one report is better than the first failure."""
    inputs = hostile.make_inputs(tmp_path / "inputs", small_run)
    judge = hostile.Judge(zygote, inputs, tmp_path / "cases")
    drawn = hostile.sample_of(hostile.cases(inputs), 1 if ALL else 120, SEED)
    assert len(drawn) > 10
    tried = [(case.command, case.name, judge.try_case(case)) for case in drawn]
    assert [each for each in tried if each[2]] == []
