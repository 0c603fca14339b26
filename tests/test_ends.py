"""How a command ends that is stopped: real processes, real signals, whatever libraries do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT, any_command

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(
    *words: str, program: str = "testkit.any_command", ignored: tuple[int, ...] = ()
) -> subprocess.Popen:
    """Starts a command with SIGINT and SIGHUP as a terminal gives them, or ignored."""

    def dispositions() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-m", program, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        preexec_fn=dispositions,
    )  # fmt: skip


def stop_when_ready(process: subprocess.Popen, number: int) -> tuple[list[str], str, str]:
    """Sends a signal once the command is where it wants to be; its lines before, and its words
    after."""
    before = []
    assert process.stderr is not None
    while (line := process.stderr.readline().strip()) != any_command.READY:
        assert line or process.poll() is None, before
        before.append(line)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return before, out, err


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: signal.Signals(n).name)
def test_a_signal_ends_it_with_one_line_and_75(number: int) -> None:
    process = start("wait", "--json")
    _, out, err = stop_when_ready(process, number)
    assert process.returncode == 75
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    assert len(err.splitlines()) == 1 and err.startswith(f"bigbird-ja: interrupted ({name}): ")
    assert json.loads(out)["reason"] == "interrupted" and len(out.splitlines()) == 1


@pytest.mark.parametrize(
    "what", ["swallow", "swallow_always", "in_destructor", "translate", "native", "thread"]
)
def test_no_library_can_keep_ctrl_c_to_itself(what: str) -> None:
    process = start(what, "--json")
    before, out, err = stop_when_ready(process, signal.SIGINT)
    assert process.returncode == 75
    assert len(err.strip().splitlines()) == 1 and "interrupted (Ctrl-C)" in err
    assert json.loads(out)["reason"] == "interrupted" and len(out.splitlines()) == 1
    for path in " ".join(before).split():
        assert not Path(path).exists(), "left behind"


def test_a_second_ctrl_c_does_not_wait() -> None:
    process = start("native")
    assert process.stderr is not None
    while process.stderr.readline().strip() != any_command.READY:
        pass
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    assert "interrupted again (Ctrl-C)" in process.stderr.read()


def test_ctrl_c_works_where_the_parent_ignored_it() -> None:
    process = start("wait", ignored=(signal.SIGINT,))
    stop_when_ready(process, signal.SIGINT)
    assert process.returncode == 75


def test_nohup_is_respected() -> None:
    process = start("wait", ignored=(signal.SIGHUP,))
    assert process.stderr is not None and process.stderr.readline().strip() == any_command.READY
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "SIGTERM" in err


def test_an_interrupted_sample_leaves_nothing(tmp_path: Path) -> None:
    process = start("sample", f"--output={tmp_path}/x.jsonl", "--documents=3000000",
                    program="bigbird_ja")  # fmt: skip
    while not any(tmp_path.iterdir()):
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "interrupted (SIGHUP)" in err
    assert os.listdir(tmp_path) == []
