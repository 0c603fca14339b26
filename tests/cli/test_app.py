"""The command line itself: names, help, exit statuses and `--json`.

The tests of each command check that its output with `--json` is valid. tests/test_bad_inputs.py and
test_command_flags.py check the output of refused commands.
"""

import json
import sys
import types

import pytest

from bigbird_ja import cli, errors
from bigbird_ja.cli import app
from testkit import command_line

SECRET = "ya29.a-very-secret-t0ken"


def test_the_overview_lists_the_commands_in_the_order_of_use(capsys):
    assert cli.run_command_line([]) == 0
    printed = capsys.readouterr().out
    places = [printed.index(f"\n  {name} ") for name in cli.COMMANDS]
    assert places == sorted(places)
    assert cli.run_command_line(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bigbird-ja 0.")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_defaults_and_an_example(name, capsys):
    assert cli.run_command_line([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"bigbird-ja {name}" in printed and "Example:" in printed
    assert "(default: " in printed or name == "doctor", "which has no flags of its own"
    assert cli.run_command_line(["help", name]) == 0
    assert capsys.readouterr().out == printed


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom bigbird_ja import cli\n"
        "for name in cli.COMMANDS: cli.run_command_line([name, '--help'])\n"
        "heavy = {'tensorflow', 'numpy', 'google.cloud', 'jax', 'torch', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert command_line.run(sys.executable, "-c", program).stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_names_the_nearest(capsys):
    for words in (["pretran"], ["help", "pretran"]):
        assert cli.run_command_line(words) == 2
        assert "'pretrain'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["nonsense", "--json"], ["--json"]])
def test_a_missing_command_is_refused_in_json(words, run):
    ended = run(*words)
    assert ended.status == 2 and ended.json["reason"] == "bad_input"


def test_standard_output_with_json_is_one_line():
    ended = command_line.run_module("testkit.any_command", "work", "--json")
    assert ended.json == {"reason": "finished", "count": 3}
    assert "a table" in ended.stderr and "a line of a C library" in ended.stderr
    ended = command_line.run_module("testkit.any_command", "work", "--nojson")
    assert "a table" in ended.stdout and "{" not in ended.stdout


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (errors.BadInput(f"sent Bearer {SECRET} to the bucket"), 2, "bad_input"),
        (errors.Diverged("step 7"), 70, "diverged"),
        (MemoryError(), 71, "out_of_memory"),
        (errors.StorageError("x"), 74, "io_error"),
        (errors.Interrupted("saved"), 75, "interrupted"),
        (KeyboardInterrupt(), 75, "interrupted"),
        (errors.Stalled("x"), 76, "stalled"),
        (ZeroDivisionError(f"HF_TOKEN={SECRET}"), 1, "bug"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_every_error_has_its_status_and_reason_and_no_secret(
    error, status, reason, monkeypatch, capsys
):
    def run(args):
        raise error

    command = types.SimpleNamespace(define_flags=lambda flags: None, run=run)
    monkeypatch.setattr(app, "load_command", lambda name: command)
    assert cli.run_command_line(["demo", "--json"]) == status
    captured = capsys.readouterr()
    assert json.loads(captured.out)["reason"] == reason
    assert ("Traceback" in captured.err) == (reason == "bug")
    assert SECRET not in captured.out + captured.err


def test_a_missing_package_is_named_before_work_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.chdir(tmp_path)
    assert cli.run_command_line(["preflight"]) == 2
    assert "jax is not installed here: pip install 'bigbird-ja[cpu]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was made"
