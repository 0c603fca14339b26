"""Runs `bigbird-ja COMMAND [--flags]` and maps its end to an exit status.

A command is a module of `bigbird_ja.commands` with

- a docstring: the summary line, then the exact command, what it reads and writes, its time;
- `EXAMPLE`: one command line, shown by `--help`;
- `SETTINGS`, where it takes `--config` and `--set`: the sections and single keys that it uses;
- `POSITIONAL`, where it takes one word without a flag: the flag that the word is for;
- `NEEDS`, where it cannot do without packages that pip does not install with ours;
- `define_flags(flags)`: declares its own flags on a `command_flags.Flags`;
- `run(args) -> dict`: does the work and returns the `--json` results. It imports what it needs
  inside, so that asking for help never waits for TensorFlow.

`args` is the parsed `absl.flags.FlagValues`; `args.json` exists always.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.process import children, streams
from bigbird_ja.process.errors import BadInput, Interrupted, classify, one_line, require
from bigbird_ja.process.redact import redact
from bigbird_ja.process.signals import CommandSignals, name_of
from bigbird_ja.process.streams import ResultLine

# In the order of use: this is what `bigbird-ja` alone prints.
COMMANDS: dict[str, str] = {
    "demo": "the whole road on a small generated corpus, on this machine's CPU",
    "sample": "write a deterministic, generated Japanese corpus in Wiki40b layout",
    "tokenize": "train a SentencePiece model",
    "trim": "cut an encoder's vocabulary down to what a corpus needs",
    "make-data": "corpus to sharded TFRecords and manifest.json, on disk or gs://",
    "check-data": "verify a data set and show what is in it",
    "plan": "tokens, steps, hours and money, before anything is rented",
    "preflight": "compile the train step with the real TPU compiler, with no TPU",
    "config": "the settings that a command would use, explained",
    "pretrain": "train or resume, on CPU, GPU or TPU",
    "evaluate": "measure masked-LM loss and accuracy on held-out records",
    "fill-mask": "fill in [MASK] in a text with the likeliest pieces",
    "report": "write one self-contained HTML page about one run or several",
    "export": "make a Hugging Face folder or a SavedModel",
    "launch": "rent a spot TPU VM, train on it, recreate it, delete it at the end",
    "status": "list runs and TPUs",
    "logs": "follow the trainer's log of a rented run",
    "down": "delete what is left",
    "doctor": "what this machine has and lacks, and what to do about it",
}

# Of TensorFlow: name -> value, and why. A value that the user has set stays.
_TENSORFLOW: dict[str, str] = {
    # The C++ side logs "errors" on every start where there is no GPU; a real one raises anyway.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Each open object takes one block of buffer; the default of 64 MiB per interleaved shard is
    # memory that a TPU VM with 64 open shards does not have.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "4",
    # Without the cache an object is read without asking for its size first: one request for a shard
    # and not two. A complete but short reply then ends a shard early; `pipeline` counts records.
    "GCS_READ_CACHE_DISABLED": "1",
    # Passing faults are ridden out: 1 s doubled up to 16 s, 8 times, is about 80 s in all; the
    # default's 10 tries up to 32 s keep a TPU waiting for 200 s per call, and then again.
    "GCS_RETRY_CONFIG_MAX_RETRIES": "8",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "16000000",
    # A silent connection is dropped after this, and the request sent again (default 60).
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
}

_JSON_FLAG = re.compile(r"--?json(=(true|1))?", re.I)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its status: the console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.prepare()
    signals = CommandSignals(lambda message: _leave(message, signals)).install()
    try:
        status = run_command_line(arguments, signals)
    except KeyboardInterrupt as stop:  # before the command, or while help is printed
        with _results(_wants_json(arguments)) as results:
            status = _report(stop, results, signals)
    if (unwritten := streams.finish()) is not None and status == 0:
        status = _report(unwritten, None, signals)
        streams.finish()
    if signals.number:  # at once: no thread is waited for, no library is unloaded
        children.clean_up()
        atexit._run_exitfuncs()  # libraries' own temporary files
        os._exit(status)
    sys.exit(status)


def _wants_json(arguments: list[str]) -> bool:
    """Looks for `--json` among words that are not parsed yet, or cannot be."""
    return any(_JSON_FLAG.fullmatch(word) for word in arguments)


def run_command_line(arguments: list[str], signals: CommandSignals | None = None) -> int:
    """Runs `arguments` (without the program's name) and returns the exit status.

    Args:
        arguments: words of the command line.
        signals: of the process, where it is the console script's.
    """
    with _results(_wants_json(arguments)) as results:
        try:
            outcome = _run(arguments)
            if isinstance(outcome, str):
                print(outcome)
            sys.stdout.flush()
            if results is not None and isinstance(outcome, dict):
                results.write({"reason": "finished", **outcome})
            if signals is not None:
                signals.is_settled = True
        except BaseException as error:
            return _report(error, results, signals)
    return 0


def _results(wanted: bool) -> AbstractContextManager[ResultLine | None]:
    """Opens the stream of the `--json` line, if it is wanted."""
    return streams.results_apart() if wanted else contextlib.nullcontext()


def _run(arguments: list[str]) -> dict[str, Any] | str:
    """Run a command and return its results, or return the help that is asked for."""
    asks = bool(arguments) and arguments[0] in ("-h", "--help", "--helpfull", "help")
    if not arguments or (asks and len(arguments) == 1):
        return _overview()
    if arguments[0] in ("--version", "-version"):
        return f"bigbird-ja {__version__}"
    name, *words = [*arguments[1:], "--help"] if asks else arguments
    from bigbird_ja.cli import command_flags  # absl: the list of commands does without

    command = load_command(name)
    args = command_flags.parse(command, name, words)
    if args.help:
        return command_flags.command_help(command, name)
    require(*getattr(command, "NEEDS", ()))
    prepare_tensorflow(os.environ)  # read by TensorFlow while it is imported
    return command.run(args) or {}


def _report(
    error: BaseException, results: ResultLine | None, signals: CommandSignals | None
) -> int:
    """Prints why a command failed and returns the status."""
    if isinstance(error, MemoryError):  # the report needs the memory that its frames hold
        traceback.clear_frames(error.__traceback__)
    if signals is not None:
        signals.is_settled = True
        if signals.number and classify(error) is None:
            # A library made another exception of the KeyboardInterrupt that was raised in it.
            error = KeyboardInterrupt(name_of(signals.number))
    known = classify(error)
    if known is None:
        status, reason = 1, "bug"
        text = redact("".join(traceback.format_exception(error)))
        message = redact(f"{type(error).__name__}: {error}")
    else:
        status, reason = known.status, known.reason
        message = redact(one_line(str(known)))
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
    """Ends the process from the thread that watches over signals; nothing here may wait long."""

    def last_words() -> None:
        if not signals.is_settled:
            with contextlib.suppress(OSError):
                os.write(2, f"\nbigbird-ja: {message}\n".encode())  # below a line of progress
            streams.write_results({"reason": Interrupted.reason, "error": message})

    for act, seconds in ((children.clean_up, 5.0), (last_words, 2.0), (atexit._run_exitfuncs, 2.0)):
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(seconds)
    os._exit(Interrupted.status)


def load_command(name: str) -> Any:
    """Imports the module of a command.

    Raises:
        BadInput: no such command; the message names the nearest one.
    """
    if name not in COMMANDS:
        from bigbird_ja.settings.suggestions import nearest

        raise BadInput(f"no command {name!r}{nearest(name, COMMANDS)}: `bigbird-ja` lists them")
    return importlib.import_module(f"bigbird_ja.commands.{name.replace('-', '_')}")


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    rows = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    return (
        "bigbird-ja: pretrain long-sequence Japanese encoders on preemptible Cloud TPUs.\n\n"
        f"Commands, in the order of use:\n{rows}\n\n"
        "`bigbird-ja help COMMAND` shows a command's flags; `demo` is a good start."
    )


def prepare_tensorflow(environ: MutableMapping[str, str]) -> None:
    """Sets what TensorFlow, its gs:// client and its logging read while TensorFlow is imported.

    Set afterwards these variables do nothing. TensorFlow reads training records from gs:// and
    nothing else; everything durable goes through `bigbird_ja.storage`.

    Args:
        environ: changed in place; what the user has set stays.
    """
    for name, value in _TENSORFLOW.items():
        environ.setdefault(name, value)
    if importlib.util.find_spec("tensorflow_estimator") is None:
        # Nothing but TPUEstimator needs Keras, which with matplotlib is a third of the import; the
        # legacy one, tf_keras, is seldom installed, and then no Keras is imported.
        environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    ExtensionFileLoader.create_module = _create_module  # type: ignore[method-assign,assignment]


_load_library = ExtensionFileLoader.create_module


def _create_module(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
    """Loads a library of TensorFlow without the notices that it prints before it can be configured.

    From 2.20 on, some of its libraries say while they are loaded that oneDNN is used, whatever
    TF_CPP_MIN_LOG_LEVEL says: four lines of every command. Loading holds Python's lock, so that no
    thread of ours writes to standard error meanwhile.
    """
    if not spec.name.startswith("tensorflow."):
        return _load_library(loader, spec)
    try:
        kept, printed = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 (below)
    except OSError:  # standard error is closed, or there is no room: the notices do no harm
        return _load_library(loader, spec)
    with printed:
        os.dup2(printed.fileno(), 2)
        try:
            return _load_library(loader, spec)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            printed.seek(0)
            for line in printed:
                if not line.startswith((b"I0000 ", b"WARNING: All log messages before absl::")):
                    os.write(2, line)
