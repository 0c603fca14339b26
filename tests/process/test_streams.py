"""Standard streams that are full, are closed, or do not use UTF-8."""

import os
import subprocess
import sys

import pytest

from testkit import ROOT, command_line


def shell(line, **env):
    """Run a line of bash. In it, `$RUN` runs `testkit.any_command`, and `$BIGBIRD` bigbird-ja."""
    python = f"{sys.executable} -m"
    programs = {"RUN": f"{python} testkit.any_command", "BIGBIRD": f"{python} bigbird_ja"}
    return command_line.run("bash", "-c", line, env={**programs, **env})


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("$RUN work --json >/dev/full", 74, "standard output: No space left on device"),
        ("$RUN work --json 2>/dev/full", 74, "No space left on device"),
        ("$RUN work >/dev/full 2>/dev/full", 74, ""),
        ("$BIGBIRD plan --help >/dev/full", 74, "standard output: No space left on device"),
    ],
)
def test_a_full_stream_ends_a_command_with_74(line, status, words):
    ended = shell(line)
    printed = ended.stdout + ended.stderr
    assert ended.status == status, printed
    assert "Traceback" not in printed and "Exception ignored" not in printed
    assert words in printed


def test_a_closed_pipe_ends_a_command_with_74():
    for line in ("$RUN chatter | head -1", "$RUN chatter 2>&1 | head -1"):
        ended = shell(f"{line} >/dev/null; exit ${{PIPESTATUS[0]}}")
        assert ended.status == 74
        assert ended.stderr in ("", "bigbird-ja: standard output: its reader has ended\n")


@pytest.mark.parametrize("encoding", ["ascii", "cp932"])
def test_any_encoding_can_be_printed_in(encoding):
    ended = shell("$RUN chatter | head -1; exit ${PIPESTATUS[0]}", PYTHONIOENCODING=encoding)
    assert ended.status == 74 and "Traceback" not in ended.stderr, ended.stderr
    assert ended.stdout


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_an_ascii_locale_refuses_names_that_it_cannot_spell(tmp_path):
    ended = shell(f"$BIGBIRD sample --documents=1 --json --output={tmp_path}/new/東京.txt", **ASCII)
    assert ended.status == 2 and ended.json["reason"] == "bad_input", ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


GUARDED = """
import logging
from bigbird_ja.process import console, streams
streams.prepare()
told = []
with console.print_log(), console.outlive_reader(lambda: told.append(1)):
    for _ in range(3):
        console.log("lost")
print(told)
streams.finish()
"""


def test_a_guarded_log_may_fail():
    reader, closed = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for stderr, told in ((full, "[]\n"), (closed, "[1]\n")):
        command = [sys.executable, "-c", GUARDED]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT)
        assert (ended.returncode, ended.stdout) == (0, told)
        os.close(stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("flags", ["", "--json"])
def test_a_closed_standard_stream_is_the_null_device(closed, flags, tmp_path):
    ended = shell(f"$RUN work {flags} {closed}")
    assert ended.status == 0, ended.stderr
    assert ">&-" in closed or "Traceback" not in ended.stderr
    if flags and closed == "2>&-":
        assert ended.json == {"reason": "finished", "count": 3}
    refused = shell(f"$BIGBIRD config nonsense {flags} {closed}")
    assert refused.status == 2 and "AttributeError" not in refused.stderr
    assert ("bigbird-ja: " in refused.stderr) == ("2>&-" not in closed)
    # A file that the command opens must not get the number of a closed stream.
    sample = shell(f"$BIGBIRD sample --documents=1 --output={tmp_path}/a.txt {flags} {closed}")
    assert sample.status == 0 and "reason" not in (tmp_path / "a.txt").read_text()
