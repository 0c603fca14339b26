"""Entry point of `bigbird-ja COMMAND [--flags]`.

A command is a module of `bigbird_ja.commands` with

- a docstring: a summary line, then examples, inputs, outputs and duration;
- `EXAMPLE`: one command line, shown by `--help`;
- `SETTINGS`, if it accepts `--config` and `--set`: keys of the settings that it uses;
- `POSITIONAL`, if it accepts one argument without a flag: the flag that the argument sets;
- `NEEDS`, if it requires packages that pip does not install with bigbird-ja;
- `define_flags(flags)`, which declares its flags on a `command_flags.Flags`;
- `run(args)`, which calls the command's function of `bigbird_ja`, prints the result for users, and
  returns the result: a dataclass whose fields are the keys of the `--json` line. Slow imports are
  inside `run`, so that `--help` is fast.

`args` is the parsed `absl.flags.FlagValues`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.cli.spelling import spell_flags
from bigbird_ja.errors import BadInput, Interrupted
from bigbird_ja.process import cleanup, console, streams
from bigbird_ja.process.classify import classify, join_lines
from bigbird_ja.process.console import ConsoleHandler
from bigbird_ja.process.extras import require
from bigbird_ja.process.redact import redact
from bigbird_ja.process.signals import CommandSignals, name_of
from bigbird_ja.process.streams import ResultLine
from bigbird_ja.process.tensorflow_setup import prepare_tensorflow

# Summaries of the commands, in the usual order of their use.
COMMANDS: dict[str, str] = {
    "demo": "run every stage on a small generated corpus, on this machine's CPU",
    "sample": "write a deterministic, generated Japanese corpus in Wiki40b layout",
    "tokenize": "train a SentencePiece model",
    "trim": "trim an encoder's vocabulary to what a corpus needs",
    "make-data": "turn a corpus into sharded TFRecords and manifest.json, on disk or gs://",
    "check-data": "verify a data set and show its contents",
    "plan": "estimate tokens, steps, hours and cost, before anything is rented",
    "preflight": "compile the train step with the real TPU compiler, without a TPU",
    "config": "explain the settings that a command would use",
    "pretrain": "train or resume, on CPU, GPU or TPU",
    "evaluate": "measure masked-LM loss and accuracy on held-out records",
    "fill-mask": "fill in [MASK] in a text with the most likely tokens",
    "report": "write one self-contained HTML page about one or more runs",
    "export": "make a Hugging Face folder or a SavedModel",
    "launch": "rent a spot TPU VM, train on it, recreate it, delete it at the end",
    "status": "list runs and TPUs",
    "logs": "follow the trainer's log of a rented run",
    "down": "delete the remaining resources of a run",
    "doctor": "check what this machine has and lacks for training",
}

_JSON_FLAG = re.compile(r"--?json(=(true|1))?", re.I)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status. This is the console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    signals = CommandSignals(lambda message: _leave(message, signals)).install()
    try:
        status = run_command_line(arguments, signals)
    except KeyboardInterrupt as stop:
        # The signal arrived outside of `run_command_line`.
        with _open_results(_is_json_requested(arguments)) as results:
            status = _report(stop, results, signals, str)
    if (unwritten := streams.finish()) is not None and status == 0:
        status = _report(unwritten, None, signals, str)
        streams.finish()
    # After a signal, exit without waiting for threads. The libraries' exit functions still run,
    # since they remove temporary files.
    if signals.number:
        cleanup.clean_up()
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


def _is_json_requested(arguments: list[str]) -> bool:
    """Return whether arguments contain `--json`, even if they cannot be parsed."""
    return any(_JSON_FLAG.fullmatch(word) for word in arguments)


def run_command_line(arguments: list[str], signals: CommandSignals | None = None) -> int:
    """Run a command line and return the exit status.

    Args:
        arguments: arguments without the program's name.
        signals: signal handlers of the console script, None for other callers.
    """
    with _open_results(_is_json_requested(arguments)) as results, console.print_log() as printed:
        try:
            outcome = _run(arguments, printed)
            with streams.name_stream(1):
                if isinstance(outcome, str):
                    print(outcome)
                sys.stdout.flush()
            if results is not None and isinstance(outcome, dict):
                results.write({"reason": "finished", **outcome})
            if signals is not None:
                signals.is_settled = True
        except BaseException as error:
            return _report(error, results, signals, printed.translate)
    return 0


def _open_results(wanted: bool) -> AbstractContextManager[ResultLine | None]:
    """Return a context manager that yields the `--json` line's writer, or None if not `wanted`."""
    return streams.separate_results() if wanted else contextlib.nullcontext()


def _run(arguments: list[str], printed: ConsoleHandler) -> dict[str, Any] | str:
    """Run a command and return its results, or return the requested help or version.

    Args:
        arguments: arguments of the command line.
        printed: log handler. This function configures it to replace the names of parameters in
            messages by flags, such as `data_dir` by --data_dir.
    """
    asks = bool(arguments) and arguments[0] in ("-h", "--help", "--helpfull", "help")
    if not arguments or (asks and len(arguments) == 1):
        return _format_overview()
    if arguments[0] in ("--version", "-version"):
        return f"bigbird-ja {__version__}"
    name, *words = [*arguments[1:], "--help"] if asks else arguments
    # Import absl only here, so that the list of commands does not require it.
    from bigbird_ja.cli import command_flags
    from bigbird_ja.cli.command_help import format_help

    command = load_command(name)
    args = command_flags.parse(command, name, words)
    if args.help:
        return format_help(command, name)
    require(*getattr(command, "NEEDS", ()))
    # Set the environment variables before `command.run` imports TensorFlow, which reads them.
    prepare_tensorflow(os.environ)
    printed.translate = functools.partial(spell_flags, flags=set(args))
    results = command.run(args)
    return dataclasses.asdict(results)


def _report(
    error: BaseException,
    results: ResultLine | None,
    signals: CommandSignals | None,
    translate: Callable[[str], str],
) -> int:
    """Print an error and return its exit status.

    Args:
        error: exception that ended the command.
        results: writer of the `--json` line, or None without `--json`.
        signals: signal handlers of the console script, None for other callers.
        translate: function that replaces parameters in a message by flags.
    """
    # Free the memory of the failed frames, since the code below needs memory.
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)
    if signals is not None:
        signals.is_settled = True
        if signals.number and classify(error) is None:
            # A library has replaced the KeyboardInterrupt by another exception.
            error = KeyboardInterrupt(name_of(signals.number))
    known = classify(error)
    if known is None:
        status, reason = 1, "bug"
        text = redact("".join(traceback.format_exception(error)))
        message = redact(f"{type(error).__name__}: {error}")
    else:
        status, reason = known.status, known.reason
        message = redact(translate(join_lines(str(known))))
        text = f"bigbird-ja: {message}\n"
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, end="", flush=True)
    if results is not None:
        extra = getattr(error, "results", {})
        with contextlib.suppress(OSError):
            results.write({**extra, "reason": reason, "error": message})
    return status


def _leave(message: str, signals: CommandSignals) -> None:
    """Clean up and end the process, from the thread that receives signals.

    The cleanup, the message and the exit functions have one timeout each.
    """

    def flush_message() -> None:
        if not signals.is_settled:
            with contextlib.suppress(OSError):
                # The first newline ends a progress line that the terminal may show.
                os.write(2, f"\nbigbird-ja: {message}\n".encode())
            streams.write_results({"reason": Interrupted.reason, "error": message})

    for act, seconds in (
        (cleanup.clean_up, 5.0),
        (flush_message, 2.0),
        (atexit._run_exitfuncs, 2.0),
    ):
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(seconds)
    os._exit(Interrupted.status)


def load_command(name: str) -> Any:
    """Import the module of a command.

    Raises:
        BadInput: The command does not exist. The message suggests a command with a similar name.
    """
    if name not in COMMANDS:
        from bigbird_ja.settings.suggestions import suggest_nearest

        hint = suggest_nearest(name, COMMANDS)
        raise BadInput(f"no command {name!r}{hint}: `bigbird-ja` lists all commands")
    return importlib.import_module(f"bigbird_ja.commands.{name.replace('-', '_')}")


def _format_overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    rows = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    return (
        "bigbird-ja: pretrain long-sequence Japanese encoders on preemptible Cloud TPUs.\n\n"
        f"Commands, in the order of use:\n{rows}\n\n"
        "`bigbird-ja help COMMAND` shows a command's flags; `demo` is a good start."
    )
