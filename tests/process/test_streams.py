"""Standard streams that are full, read by nobody, or of another encoding."""

import os
import sys

import pytest

from bigbird_ja.process import streams
from testkit import command_line


def shell(line, **env):
    """Runs a line of bash in which `$RUN` is a command of `testkit.any_command`."""
    python = f"{sys.executable} -m"
    programs = {"RUN": f"{python} testkit.any_command", "BIGBIRD": f"{python} bigbird_ja"}
    return command_line.run("bash", "-c", line, env={**programs, **env})


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("$RUN work --json >/dev/full", 74, "standard output: No space left on device"),
        ("$RUN work --json 2>/dev/full", 74, "standard error: No space left on device"),
        ("$RUN work >/dev/full 2>/dev/full", 74, ""),
        ("$BIGBIRD plan --help >/dev/full", 74, "standard output: No space left on device"),
    ],
)
def test_a_stream_that_takes_nothing(line, status, words):
    ended = shell(line)
    printed = ended.stdout + ended.stderr
    assert ended.status == status, printed
    assert "Traceback" not in printed and "Exception ignored" not in printed
    assert words in printed


def test_a_reader_that_goes_away_ends_a_command():
    for line in ("$RUN chatter | head -1", "$RUN chatter 2>&1 | head -1"):
        ended = shell(f"{line} >/dev/null; exit ${{PIPESTATUS[0]}}")
        assert ended.status == 74
        assert ended.stderr in ("", "bigbird-ja: standard output: its reader went away\n")


@pytest.mark.parametrize("encoding", ["ascii", "cp932"])
def test_any_encoding_can_be_printed_in(encoding):
    ended = shell("$RUN chatter | head -1; exit ${PIPESTATUS[0]}", PYTHONIOENCODING=encoding)
    assert ended.status == 74 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stdout


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_an_ascii_locale_takes_names_of_files(tmp_path):
    output = tmp_path / "東京.txt"
    ended = shell(f"$BIGBIRD sample --documents=1 --json --output={output}", **ASCII)
    assert ended.status == 0 and output.is_file(), ended.stderr
    assert ended.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (r"--text=$'\xff[MASK]'", "--text: not UTF-8"),
        ("--text='日本の[MASK]です。'", "none: no checkpoint here"),  # it can be
    ],
)
def test_a_text_that_cannot_be_read(arguments, words):
    for env in ({}, ASCII):
        ended = shell(f"$BIGBIRD fill-mask --model_dir=none {arguments}", **env)
        assert ended.status == 2 and words in ended.stderr, ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_a_full_disk_is_no_reason_to_stop_and_the_stream_is_restored():
    gone = []
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
