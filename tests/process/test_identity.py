"""Owners are distinguished by more than their process id."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import pytest

from bigbird_ja.process import identity

HERE = identity.this_process()


@pytest.mark.parametrize(
    ("changes", "has_ended"),
    [
        ({}, False),
        ({"started": 1}, True),  # the id is used again
        ({"machine": "another boot"}, False),  # its processes cannot be seen from here
        ({"pid": -1}, True),
    ],
)
def test_whether_an_owner_has_ended(changes: dict, has_ended: bool) -> None:
    assert dataclasses.replace(HERE, **changes).has_ended == has_ended


def test_a_killed_process_has_ended_even_before_its_parent_waits_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert identity.is_running(child.pid)
    child.kill()
    deadline = time.monotonic() + 30
    while identity.is_running(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not identity.is_running(child.pid)
    child.communicate()
    assert not identity.is_running(child.pid)


def test_a_file_name_can_record_the_owner() -> None:
    assert identity.from_tag(HERE.tag) == dataclasses.replace(HERE, host="?")
    assert identity.from_tag("thesis-1-2") is None and identity.from_tag("") is None
    assert str(os.getpid()) in HERE.name
    other = dataclasses.replace(HERE, machine="0123456789ab.1")
    assert other.is_of_another_boot and not HERE.is_of_another_boot
