"""Owners are distinguished by more than their process id."""

import subprocess
import sys
import time

from bigbird_ja.process import identity


def test_a_killed_process_has_ended_even_before_its_parent_waits_for_it():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert identity.is_running(child.pid)
    child.kill()
    deadline = time.monotonic() + 30
    while identity.is_running(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not identity.is_running(child.pid)
    child.communicate()
    assert not identity.is_running(child.pid)
