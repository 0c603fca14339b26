"""Timing against an earlier commit: its files, the order of the pairs, what the ratios are."""

import sys

import pytest

from scripts import revisions
from scripts.revisions import Comparison, Taken
from testkit import ROOT


def test_pairs_take_turns_each_in_its_tree(tmp_path):
    notes = tmp_path / "notes"
    note = "import os, sys; open(sys.argv[1], 'a').write(sys.argv[2] + ' ' + os.getcwd() + '\\n')"
    result = revisions.compare(
        "x", str(tmp_path), 2, lambda place: [sys.executable, "-c", note, str(notes), place]
    )
    lines = [line.split() for line in notes.read_text().splitlines()]
    before, now = str(tmp_path), str(ROOT)
    assert lines == [["before0", before], ["now0", now], ["now1", now], ["before1", before]]
    assert len(result.before) == len(result.now) == 2
    assert all(0 < taken.seconds < 100 for taken in result.before + result.now)


def test_the_ratio_is_the_median_over_pairs():
    before = [Taken(1.0, 2.0), Taken(2.0, 4.0), Taken(10.0, 8.0)]
    now = [Taken(2.0, 2.0), Taken(2.0, 6.0), Taken(5.0, 8.8)]
    result = Comparison("x", before, now)
    assert result.ratio("seconds") == 1.0 and result.ratio("cpu_seconds") == pytest.approx(1.1)
    assert result.row() == ["x", 3, "2.00", "2.00", "1.100", "1.000"]
