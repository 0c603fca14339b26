"""The command line itself: names, help, flags, exit statuses and `--json`."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import types
from typing import Any

import pytest
from absl import flags

from bigbird_ja.cli import command_flags, main
from bigbird_ja.process import errors


def fake_command(run: Any) -> types.SimpleNamespace:
    def define_flags(flags: command_flags.Flags) -> None:
        flags.integer("count", 3, "How many.", unit="pieces", low=0, high=100)

    return types.SimpleNamespace(
        __doc__="A command.",
        EXAMPLE="bigbird-ja demo --count 4",
        define_flags=define_flags,
        run=run,
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(run: Any) -> None:
        monkeypatch.setattr(main, "load_command", lambda name: fake_command(run))

    return install


def test_alone_it_lists_the_commands_in_the_order_of_use(capsys: pytest.CaptureFixture) -> None:
    assert main.run_command_line([]) == 0
    printed = capsys.readouterr().out
    places = [printed.index(f"\n  {name} ") for name in main.COMMANDS]
    assert places == sorted(places)


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert main.run_command_line(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bigbird-ja 0.")


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help_with_defaults_and_an_example(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    assert main.run_command_line([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"bigbird-ja {name}" in printed and "Example:" in printed and "(default: " in printed


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom bigbird_ja.cli import main as cli\n"
        "for name in cli.COMMANDS: cli.run_command_line([name, '--help'])\n"
        "heavy = {'tensorflow', 'numpy', 'google.cloud', 'jax', 'torch', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["sample", "evaluate", "report", "export", "status"])
def test_help_of_a_command_without_settings_reads_none(name: str) -> None:
    program = (
        "import sys\nfrom bigbird_ja.cli import main as cli\n"
        f"cli.run_command_line([{name!r}, '--help'])\n"
        "print('bigbird_ja.settings.schema' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "False"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert main.run_command_line(["pretran"]) == 2
    assert "'pretrain'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["demo", "--cuont=4"], ["demo", "--count=x"], ["demo", "stray"], ["demo", "--count"]],
)
def test_bad_flags_are_one_line_and_status_2(
    arguments: list[str], command: Any, capsys: pytest.CaptureFixture
) -> None:
    command(lambda args: {})
    assert main.run_command_line(arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_json_is_all_of_standard_output(command: Any, capsys: Any) -> None:
    def run(args: flags.FlagValues) -> dict[str, Any]:
        print("a table")
        return {"count": args.count}

    command(run)
    assert main.run_command_line(["demo", "--json", "--count=4"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"reason": "finished", "count": 4}
    assert said.err == "a table\n"


ENDS = [
    (errors.BadInput("x"), 2, "bad_input"),
    (errors.Diverged("step 7"), 70, "diverged"),
    (errors.OutOfMemory("x"), 71, "out_of_memory"),
    (MemoryError(), 71, "out_of_memory"),
    (errors.StorageError("x"), 74, "io_error"),
    (OSError(errno.ENOSPC, "No space left on device", "/disk/f"), 74, "io_error"),
    (PermissionError(errno.EACCES, "Permission denied", "/root/f"), 2, "bad_input"),
    (FileNotFoundError(errno.ENOENT, "No such file", "/f"), 2, "bad_input"),
    (errors.Interrupted("saved"), 75, "interrupted"),
    (KeyboardInterrupt(), 75, "interrupted"),
    (errors.Stalled("x"), 76, "stalled"),
    (ZeroDivisionError("division"), 1, "bug"),
]


@pytest.mark.parametrize(("error", "status", "reason"), ENDS, ids=lambda value: repr(value)[:40])
def test_every_end_has_its_status_and_reason(
    error: BaseException, status: int, reason: str, command: Any, capsys: Any
) -> None:
    def run(args: flags.FlagValues) -> dict[str, Any]:
        raise error

    command(run)
    assert main.run_command_line(["demo", "--json"]) == status
    captured = capsys.readouterr()
    assert json.loads(captured.out)["reason"] == reason
    assert ("Traceback" in captured.err) == (reason == "bug")


def test_tensorflow_exceptions_are_recognised_without_tensorflow() -> None:
    def named(name: str, message: str) -> errors.CommandError | None:
        return errors.classify(type(name, (Exception,), {})(message))

    assert isinstance(
        named("ResourceExhaustedError", "/d/f; No space left on device"), errors.StorageError
    )
    assert isinstance(
        named("ResourceExhaustedError", "OOM when allocating tensor"), errors.OutOfMemory
    )
    assert isinstance(named("AbortedError", "All 10 retry attempts failed"), errors.StorageError)
    assert named("InvalidArgumentError", "shapes") is None


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_a_command_comes_before_and_after_its_name(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    assert main.run_command_line([name, "--help"]) == 0
    expected = capsys.readouterr().out
    assert main.run_command_line(["help", name]) == 0
    assert capsys.readouterr().out == expected


def test_help_of_no_command_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert main.run_command_line(["help", "pretran"]) == 2
    assert "'pretrain'" in capsys.readouterr().err
