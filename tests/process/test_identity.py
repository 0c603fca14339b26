"""Owners are told apart by more than their process id."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from bigbird_ja.process import identity

HERE = identity.this_process().as_dict()


@pytest.mark.parametrize(
    ("changes", "has_ended"),
    [
        ({}, False),
        ({"started": 1}, True),  # the id is used again
        ({"machine": "another boot"}, False),  # nothing can be told of it
        ({"pid": "7"}, True),
        ({"pid": -1}, True),
    ],
)
def test_whether_an_owner_has_ended(changes: dict, has_ended: bool) -> None:
    assert identity.has_ended({**HERE, **changes}) == has_ended


def test_a_dead_process_does_not_run_before_it_is_buried_either() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert identity.is_running(child.pid)
    child.kill()
    deadline = time.monotonic() + 30
    while identity.is_running(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not identity.is_running(child.pid)
    child.communicate()
    assert not identity.is_running(child.pid)


def test_what_is_no_record_of_ours_is_named_all_the_same() -> None:
    assert not identity.is_here({}) and not identity.has_ended({})
    assert identity.name({}) == "process ? on host ?"
    assert str(os.getpid()) in identity.name(HERE)
