"""`bigbird-ja COMMAND [--flags]`: finds the command, parses flags, maps its end to a status.

A command is a module of `bigbird_ja.commands` with

- a docstring: the summary line, then the exact command, what it reads and writes, its time;
- `EXAMPLE`: one command line, shown by `--help`;
- `define_flags(flag_values)`: defines its own absl flags on `flag_values`;
- `run(args) -> dict`: does the work and returns the `--json` results. It imports what it needs
  inside, so that asking for help never waits for TensorFlow.

`args` is the parsed `absl.flags.FlagValues`: `args.config`, `args.set`, `args.json` exist always.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from typing import Any

from absl import flags

from bigbird_ja import __version__, tensorflow_env
from bigbird_ja.errors import BadInput, classify
from bigbird_ja.redaction import redact

# In the order of use: this is what `bigbird-ja` alone prints.
COMMANDS: dict[str, str] = {
    "demo": "the whole road on a small generated corpus, on this machine's CPU",
    "sample": "write a deterministic, generated Japanese corpus in Wiki40b layout",
    "tokenize": "train a SentencePiece model",
    "make-data": "corpus to sharded TFRecords and manifest.json, on disk or gs://",
    "check-data": "verify a data set and show what is in it",
    "plan": "tokens, steps, hours and money, before anything is rented",
    "preflight": "compile the train step with the real TPU compiler, with no TPU",
    "pretrain": "train or resume, on CPU, GPU or TPU",
    "evaluate": "masked-LM loss and accuracy on held-out records",
    "fill-mask": "what the model puts at [MASK] in a text",
    "report": "one self-contained HTML page about one run or several",
    "export": "Hugging Face folder or SavedModel",
    "launch": "rent a spot TPU VM, train on it, recreate it, delete it at the end",
    "status": "list runs and TPUs",
    "down": "delete what is left",
}


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs one command and exits with its status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: status 75
    sys.exit(run_command_line(list(sys.argv[1:] if argv is None else argv)))


def run_command_line(arguments: list[str]) -> int:
    """Runs `arguments` (without the program's name) and returns the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "--helpfull", "help"):
        print(_overview())
        return 0
    if arguments[0] in ("--version", "-version"):
        print(f"bigbird-ja {__version__}")
        return 0
    wants_json = any(a in ("--json", "-json", "--json=true") for a in arguments)
    try:
        command = load_command(arguments[0])
        args = parse_flags(command, arguments[0], arguments[1:])
        if args.help:
            print(command_help(command, arguments[0]))
            return 0
        wants_json = args.json
        tensorflow_env.prepare(os.environ)  # whoever imports TensorFlow finds it set
        result = command.run(args)
    except (Exception, KeyboardInterrupt) as error:
        return _report_failure(error, wants_json)
    if args.json:
        _print_json({"reason": "finished", **(result or {})})
    return 0


def load_command(name: str) -> Any:
    """The module of a command.

    Raises:
        BadInput: no such command; the message names the nearest one.
    """
    if name not in COMMANDS:
        from bigbird_ja.config import nearest

        raise BadInput(f"no command {name!r}{nearest(name, COMMANDS)}: `bigbird-ja` lists them")
    return importlib.import_module(f"bigbird_ja.commands.{name.replace('-', '_')}")


def parse_flags(command: Any, name: str, arguments: Sequence[str]) -> flags.FlagValues:
    """Parses a command's flags.

    Raises:
        BadInput: an unknown flag, a value that does not parse, or a stray argument.
    """
    args = command_flags(command)
    try:
        rest = args([f"bigbird-ja {name}", *arguments])[1:]
    except flags.Error as error:
        message = " ".join(str(error).split())
        raise BadInput(f"{message}: see `bigbird-ja {name} --help`") from error
    if rest and not args.help:
        raise BadInput(f"unexpected argument {rest[0]!r}: see `bigbird-ja {name} --help`")
    return args


def command_flags(command: Any) -> flags.FlagValues:
    """A command's own flags and the ones that every command has, not yet parsed."""
    values = flags.FlagValues()
    flags.DEFINE_string(
        "config", None, "YAML file of settings; presets are in configs/.", flag_values=values
    )
    flags.DEFINE_multi_string(
        "set",
        [],
        "Overrides one setting: --set model.num_layers=6 (repeatable).",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "json", False, "Prints the results as one JSON object, the last line.", flag_values=values
    )
    flags.DEFINE_bool("help", False, "Shows this help.", short_name="h", flag_values=values)
    command.define_flags(values)
    return values


def command_help(command: Any, name: str) -> str:
    """What `bigbird-ja COMMAND --help` prints: the docstring, the example, the command's flags."""
    values = command_flags(command)
    lines = [f"bigbird-ja {name}: {(command.__doc__ or '').strip()}", "", "Example:"]
    lines += [f"  {command.EXAMPLE}", "", "Flags:"]
    for flag_name in sorted(values):
        flag = values[flag_name]
        if flag_name != flag.name:  # a short name, listed with its long one
            continue
        lines.append(f"  --{_flag_form(flag)}")
        lines += textwrap.wrap(
            _flag_text(flag), 92, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    return "\n".join(lines)


def _flag_form(flag: flags.Flag) -> str:
    kind = flag.flag_type()
    if kind == "bool":
        return f"[no]{flag.name}"
    values = getattr(flag.parser, "enum_values", None)
    if values:
        return f"{flag.name}={'|'.join(values)}"
    return f"{flag.name}={kind.removeprefix('multi ').upper()}"


# What absl adds to a help text, and a default that the text itself states: "Pieces (32000)."
_ABSL_ENUM = re.compile(r"^<[^>]*>: ")
_ABSL_MULTI = re.compile(r"; *repeat this option to specify a list of values$")
_STATED_DEFAULT = re.compile(r"^(?P<text>.*\S) \((?P<default>[^()]+)\)\.?$")


def _flag_text(flag: flags.Flag) -> str:
    """A flag's help with its default; a flag that overrides the config states the config's."""
    text = _ABSL_MULTI.sub("", _ABSL_ENUM.sub("", " ".join(flag.help.split())))
    default = _default_text(flag)
    stated = _STATED_DEFAULT.match(text)
    if default == "none" and stated and "repeatable" not in stated["default"]:
        text, default = stated["text"] + ".", stated["default"]
    return f"{text} (default: {default})"


def _default_text(flag: flags.Flag) -> str:
    if flag.default is None or flag.default == []:
        return "none"
    if isinstance(flag.default, bool):
        return "on" if flag.default else "off"
    if isinstance(flag.default, list):
        return ", ".join(map(str, flag.default))
    return str(flag.default)


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    rows = "\n".join(f"  {name:<{width}}{what}" for name, what in COMMANDS.items())
    return (
        "bigbird-ja: pretrain long-sequence transformers (Japanese BigBird) on preemptible Cloud"
        f" TPUs.\n\nCommands, in the order of use:\n{rows}\n\n"
        "`bigbird-ja COMMAND --help` shows a command's flags; `bigbird-ja demo` is a good start."
    )


def _report_failure(error: BaseException, wants_json: bool) -> int:
    known = classify(error)
    if known is None:
        print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="")
        status, reason = 1, "bug"
        message = redact(f"{type(error).__name__}: {error}")
    else:
        status, reason = known.status, known.reason
        message = redact(" ".join(str(known).split()))
        print(f"bigbird-ja: {message}", file=sys.stderr)
    if wants_json:
        extra = getattr(error, "results", {})
        _print_json({**extra, "reason": reason, "error": message})
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C has nothing left to stop
    return status


def _print_json(result: dict[str, Any]) -> None:
    sys.stderr.flush()
    print(json.dumps(result, ensure_ascii=False, allow_nan=False, default=_plain), flush=True)


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"not JSON: {type(value).__name__}")
