"""The command line itself: names, help, flags, exit statuses and `--json`."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import types
from typing import Any

import pytest
from absl import flags

from bigbird_ja.cli import command_flags, main
from bigbird_ja.process import errors
from testkit import ROOT


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
    assert main.run_command_line(["help", name]) == 0
    assert capsys.readouterr().out == printed


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom bigbird_ja.cli import main as cli\n"
        "for name in ('sample', 'evaluate', 'report', 'export', 'status'):\n"
        "    cli.run_command_line([name, '--help'])\n"
        "assert 'bigbird_ja.settings.schema' not in sys.modules\n"
        "for name in cli.COMMANDS: cli.run_command_line([name, '--help'])\n"
        "heavy = {'tensorflow', 'numpy', 'google.cloud', 'jax', 'torch', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    for words in (["pretran"], ["help", "pretran"]):
        assert main.run_command_line(words) == 2
        assert "'pretrain'" in capsys.readouterr().err


def test_json_is_all_of_standard_output(command: Any, capsys: Any) -> None:
    def run(args: flags.FlagValues) -> dict[str, Any]:
        print("a table")
        return {"count": args.count}

    command(run)
    assert main.run_command_line(["demo", "--json", "--count=4"]) == 0
    messages = capsys.readouterr()
    assert json.loads(messages.out) == {"reason": "finished", "count": 4}
    assert messages.err == "a table\n"


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


@pytest.mark.parametrize(
    ("variable", "status"),
    [("XLA_FLAGS=--no_such_flag=1", 2), ("TF_XLA_FLAGS=--no_such_flag=1", 2),
     ("JAX_DISABLE_JIT=yes?", 2), ("STORAGE_EMULATOR_HOST=http://[::bad", 2),
     ("MPLBACKEND=nonsense", 0), ("PYTHONOPTIMIZE=2", 0), ("PYTHONWARNINGS=error", 0)],
)  # fmt: skip
def test_variables_of_libraries_are_refused_in_one_line_or_do_not_matter(
    variable: str, status: int, tmp_path: Any
) -> None:
    name, _, value = variable.partition("=")
    command = ["plan", "--config=tiny-cpu", f"--plot={tmp_path}/p.png"]
    if name == "STORAGE_EMULATOR_HOST":
        command = ["check-data", "--data_dir=gs://b/d"]
    done = subprocess.run(
        [sys.executable, "-m", "bigbird_ja", *command], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, name: value},
    )  # fmt: skip
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    if status:
        assert done.stderr.startswith(f"bigbird-ja: {name}") and done.stderr.count("\n") == 1
        assert value not in done.stderr, "a variable may hold a secret"
