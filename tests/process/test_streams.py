"""Standard streams that are closed, full, read by nobody, or of another encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja.process import streams
from testkit import ROOT


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which `$RUN` is `python -m` and `$OUT` a pipe's status."""
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, errors="surrogateescape", cwd=ROOT,
        env={**os.environ, "RUN": f"{sys.executable} -m testkit.any_command",
             "BIGBIRD": f"{sys.executable} -m bigbird_ja", **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("$RUN work >&-", 2, "standard output is closed"),
        ("$RUN work --json 2>&-", 2, "standard error is closed"),
        ("$RUN work >&- 2>&- <&-", 2, ""),
        ("$RUN work <&-", 0, ""),
        ("$RUN work --json >/dev/full", 74, "standard output: No space left on device"),
        ("$RUN work --json 2>/dev/full", 74, "standard error: No space left on device"),
        ("$RUN work >/dev/full 2>/dev/full", 74, ""),
        ("$RUN work 1</dev/null", 74, "standard output: Bad file descriptor"),
        ("$BIGBIRD plan --help >/dev/full", 74, "standard output: No space left on device"),
        ("$BIGBIRD >&-", 2, "standard output is closed"),
    ],
)
def test_a_stream_that_takes_nothing(line: str, status: int, words: str) -> None:
    ended = shell(line)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == status, printed
    assert "Traceback" not in printed and "Exception ignored" not in printed
    assert words in printed


def test_tensorflows_notices_at_import_are_left_out_and_what_else_is_written_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, sys\n"
        "notice = 'I0000 00:00:1795451824.822380   19887 port.cc:153] oneDNN is on.'\n"
        "old = 'WARNING: All log messages before absl::InitializeLog() is called are written'\n"
        "os.write(2, f'{old}\\n{notice}\\na real error\\n'.encode())\n"
        "if os.environ.get('ENDS'): os._exit(sys.modules['atexit']._run_exitfuncs() or 0)\n"
    )
    program = (
        "import sys, os\nfrom bigbird_ja.process.streams import QuietImport\n"
        "QuietImport('noisy')\nimport noisy\nos.write(2, b'I0000 00:00:1 port.cc:1] later\\n')"
    )
    for ends, expected in (("", "a real error\nI0000 00:00:1 port.cc:1] later\n"),
                           ("yes", "a real error\n")):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "ENDS": ends},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, expected)


def test_any_number_of_commands_in_one_process_wait_for_one_import() -> None:
    before = len(sys.meta_path)
    try:
        for _ in range(3):
            finder = streams.QuietImport("noisy")
        assert len(sys.meta_path) == before + 1
    finally:
        sys.meta_path.remove(finder)


def test_a_reader_that_goes_away_ends_a_command() -> None:
    for line in ("$RUN chatter | head -1", "$RUN chatter 2>&1 | head -1"):
        ended = shell(f"{line} >/dev/null; exit ${{PIPESTATUS[0]}}")
        assert ended.returncode == 74
        assert ended.stderr in ("", "bigbird-ja: standard output: its reader went away\n")


def test_a_file_never_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nfrom bigbird_ja.process.streams import Streams\nStreams()\n"
        "file = open(sys.argv[1], 'w')\nassert file.fileno() > 2\nfile.write('whole')\n"
        "file.flush()\nos.write(1, b'a library')\nos.write(2, b'a library')\n"
    )
    ended = shell(f"{sys.executable} {program} {tmp_path}/f <&- >&- 2>&-", PYTHONPATH=str(ROOT))
    assert ended.returncode == 0
    assert (tmp_path / "f").read_text() == "whole"


@pytest.mark.parametrize("encoding", ["ascii", "cp932", "utf-16"])
def test_any_encoding_can_be_printed_in(encoding: str) -> None:
    ended = shell("$RUN chatter | head -1; exit ${PIPESTATUS[0]}", PYTHONIOENCODING=encoding)
    assert ended.returncode == 74 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stdout


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_an_ascii_locale_takes_names_of_files(tmp_path: Path) -> None:
    output = tmp_path / "東京.txt"
    ended = shell(f"$BIGBIRD sample --documents=1 --json --output={output}", **ASCII)
    assert ended.returncode == 0 and output.is_file(), ended.stderr
    assert ended.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (r"--text=$'\xff[MASK]'", "--text: not UTF-8"),
        (r"<<< $'\xff[MASK]'", "standard input: not UTF-8"),
        ("<&-", "[MASK]"),
        ("--text='日本の[MASK]です。'", "none: no checkpoint here"),  # it can be
    ],
)
def test_a_text_that_cannot_be_read(arguments: str, words: str) -> None:
    for env in ({}, ASCII):
        ended = shell(f"$BIGBIRD fill-mask --model_dir=none {arguments}", **env)
        assert ended.returncode == 2 and words in ended.stderr, ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_a_full_disk_is_no_reason_to_stop_and_the_stream_is_restored() -> None:
    gone: list[int] = []
    before = sys.stderr
    with open("/dev/full", "w", buffering=1) as stream:
        sys.stderr = stream
        try:
            with streams.guard_stderr(lambda: gone.append(1)):
                print("lost", file=sys.stderr, flush=True)
            assert sys.stderr is stream and not gone
        finally:
            sys.stderr = before
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
