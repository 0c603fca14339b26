"""Declares, parses and explains a command's flags: type, range, choices, default, conditions.

A command declares its flags on a `Flags`; parsing, `--help` and docs/commands follow from that. A
flag that sets a setting is declared by the setting's key alone.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import EXPECTED, Option, in_words, near, suggestion

Args = flags.FlagValues  # the flags of a command, parsed

_SWITCH = {
    **dict.fromkeys(("true", "t", "1", "yes", "y"), True),
    **dict.fromkeys(("false", "f", "0", "no", "n"), False),
}

_FORMS = {int: "INT", float: "FLOAT", str: "TEXT"}
_COMMON = ("config", "set", "json", "help")


def settings() -> Mapping[str, Option]:
    """Imports all settings; help of a command that has none need not wait for them."""
    from bigbird_ja.settings.schema import OPTIONS

    return OPTIONS


class Flags:
    """Declares the flags of one command.

    Args:
        values: where absl keeps them.
    """

    def __init__(self, values: flags.FlagValues) -> None:
        self.values = values
        self.group = ""  # the heading of `--help` for what is declared next

    def text(self, name: str, help: str, *, default: Any = None, **about: Any) -> None:
        """Declares a text; `none` words a missing one, `many` makes it repeatable."""
        self._declare(name, str, default, help, **about)

    def path(self, name: str, help: str, *, default: str | None = None, **about: Any) -> None:
        """Declares a path, which cannot be empty."""
        self._declare(name, str, default, help, **{"filled": True, "form": "PATH", **about})

    def integer(self, name: str, default: int | None, help: str, **about: Any) -> None:
        """Declares a whole number; `low` and `high` are its range."""
        self._declare(name, int, default, help, **about)

    def number(self, name: str, default: float | None, help: str, **about: Any) -> None:
        """Declares a number; `low` or `above`, and `high` or `below`, are its range."""
        self._declare(name, float, default, help, **about)

    def choice(self, name: str, choices: Sequence[str], help: str, **about: Any) -> None:
        """Declares one of `choices`, of which the first is the default where none is given."""
        default = about.pop("default", choices[0])
        self._declare(name, str, default, help, choices=tuple(choices), **about)

    def switch(self, name: str, help: str, *, default: bool | None = False, **about: Any) -> None:
        """Declares a switch."""
        self._declare(name, bool, default, help, **about)

    def setting(self, key: str, name: str = "", **about: Any) -> None:
        """Declares a flag for a setting, whose own declaration says all about it."""
        option = settings()[key]
        flag = f"--{name or option.name}"
        self._add(dataclasses.replace(option, key=flag, default=None, setting=key, **about))

    def _declare(self, name: str, kind: type, default: Any, help: str, **about: Any) -> None:
        """Declares a flag; `about` holds fields of `Option`."""
        self._add(Option(f"--{name}", kind, default, help, group=self.group, **about))

    def _add(self, option: Option) -> None:
        name, default = option.key.removeprefix("--"), option.default
        parser = _Parser(option=option)
        serializer: flags.ArgumentSerializer = flags.ArgumentSerializer()
        flag: Any
        if option.kind is bool:
            flag = flags.BooleanFlag(name, default, option.help)
            flag.parser = parser
        elif option.many:
            flag = flags.MultiFlag(parser, serializer, name, default or [], option.help)
        else:
            flag = flags.Flag(parser, serializer, name, default, option.help)
        flag.declared = option
        flags.DEFINE_flag(flag, flag_values=self.values)


class _Parser(flags.ArgumentParser):
    """Reads a value, or values separated by commas, as the declaration says."""

    def __init__(self, *, option: Option) -> None:
        self.option = option

    def parse(self, argument: Any) -> Any:
        """Reads the value, or the list of values; refuses another type or range."""
        if not self.option.commas:
            return self._read(argument)
        if isinstance(argument, str):
            is_empty = not argument and self.option.kind is str
            argument = [] if is_empty else [word.strip() for word in argument.split(",")]
        return [self._read(word) for word in argument]

    def _read(self, argument: Any) -> Any:
        if self.option.kind is bool and isinstance(argument, str):
            argument = _SWITCH.get(argument.lower(), argument)
        return self.option.read(argument, "")


def declared(flag: flags.Flag) -> Option:
    """Returns the declaration of a flag."""
    return flag.declared  # type: ignore[attr-defined]


def flags_of(command: Any) -> flags.FlagValues:
    """Collects a command's own flags and the ones that every command has, not yet parsed.

    `--config` and `--set` are there where the command names what it uses of them: sections and
    single keys, in its `SETTINGS`.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    define = Flags(values)
    uses = tuple(getattr(command, "SETTINGS", ()))
    if uses:
        define.path(
            "config",
            "Preset or YAML file of settings (`bigbird-ja config` lists and explains them).",
            none="the settings' defaults",
            form="NAME|FILE",
            uses=uses,
            many=getattr(command, "MANY_CONFIGS", False),
        )
        define.text(
            "set",
            "Sets one setting: --set section.key=value (repeatable; docs/settings.md). Of use here:"
            f" {in_words(uses, settings())}.",
            many=True,
            form="KEY=VALUE",
            uses=uses,
        )
    prints = "Prints the results as one line of JSON, and nothing else, on standard output."
    define.switch("json", prints)
    define.switch("help", "Shows this help.")
    values["h"] = values["help"]
    command.define_flags(define)
    return values


def parse(command: Any, name: str, arguments: Sequence[str]) -> flags.FlagValues:
    """Parses a command's flags.

    Raises:
        BadInput: an unknown flag, a value that does not parse, one that is missing or that has no
            use beside the others, or a stray argument.
    """
    args = flags_of(command)
    arguments = [_as_declared(word, args) for word in arguments]
    see = f": see `bigbird-ja {name} --help`"
    for word in arguments:
        if word.lstrip("-").split("=")[0] == "flagfile" and word.startswith("-"):
            raise BadInput(f"unknown flag {word.split('=')[0]}{see}")  # absl would read the file
    try:
        words = args([f"bigbird-ja {name}", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        if error.flagname in ("set", "config"):
            raise BadInput(
                f"unknown flag --{error.flagname}: this command uses no settings"
            ) from error
        if serves := EXPECTED.get(error.flagname.replace("-", "_")):
            raise BadInput(f"no flag --{error.flagname}: {serves}") from error
        near = _near(args, error.flagname)
        raise BadInput(f"unknown flag --{error.flagname}{near}{see}") from error
    except flags.Error as error:
        raise BadInput(" ".join(str(error).split()) + see) from error
    if args.help:
        return args
    positional = getattr(command, "POSITIONAL", "")
    if positional and words and not args[positional].present:
        args[positional].parse(words.pop(0))
        if words:
            raise BadInput(f"unexpected argument {words[0]!r}{see}")
    elif words:
        raise _stray(args, words, see)
    _check_required(args, see)
    for flag in own_flags(args):
        if flag.present:
            _check_combination(args, flag)
    return args


def _as_declared(word: str, args: flags.FlagValues) -> str:
    """Turns `--seq-length=64` into `--seq_length=64`, `--no-cache` into `--nocache`."""
    name, equals, value = word.partition("=")
    name = name[2:].replace("-", "_")
    if name.startswith("no_") and name[3:] in args and declared(args[name[3:]]).kind is bool:
        name = f"no{name[3:]}"
    is_known = name in args or name.removeprefix("no") in args
    return f"--{name}{equals}{value}" if word.startswith("--") and is_known else word


def _stray(args: flags.FlagValues, words: Sequence[str], see: str) -> BadInput:
    """Refuses words that belong to no flag, naming the flag that they are likely meant for."""
    listed = own_flags(args)
    meant = next((f for f in listed if declared(f).required and not declared(f).unless), None)
    if meant is None:
        return BadInput(f"unexpected argument {words[0]!r}{see}")
    advice = f"did you mean --{meant.name} {words[0]}?"
    if len(words) > 1 or meant.present:  # a pattern that the shell has replaced by files' names
        advice = f"for several files quote a pattern: --{meant.name} 'FOLDER/*'"
        advice += f", or repeat --{meant.name}" if declared(meant).many else ""
    return BadInput(f"unexpected argument {words[0]!r}: {advice}")


def own_flags(args: flags.FlagValues) -> list[flags.Flag]:
    """Lists the flags, each once, as they were declared."""
    return [args[name] for name in args if args[name].name == name]


def _check_required(args: flags.FlagValues, see: str) -> None:
    """Names all flags that are required and missing."""
    missing: dict[str, list[str]] = {}
    for flag in own_flags(args):
        option = declared(flag)
        is_excused = option.unless and args[option.unless].value
        if option.required and not is_excused and flag.value in (None, []):
            missing.setdefault(option.unless, []).append(f"--{flag.name}")
    if missing:
        texts = [
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} needed"
            + (f" (or --{unless})" if unless else "")
            for unless, names in missing.items()
        ]
        raise BadInput("; ".join(texts) + see)


def _check_combination(args: flags.FlagValues, flag: flags.Flag) -> None:
    """Refuses a flag that has no effect beside the others."""
    option = declared(flag)
    if option.needs:
        check_given(args, f"--{flag.name}", option.needs)
    for other in option.excludes:
        if args[other].present:
            raise BadInput(f"--{flag.name} and --{other}: give one of them")


def check_given(args: flags.FlagValues, what: str, need: str) -> None:
    """Refuses what has no effect without a flag that is not there."""
    name, equals, value = need.partition("=")
    if not (args[name].value == value if equals else args[name].value):
        raise BadInput(f"{what} has no effect without {spelled(need)}: add that, or leave it out")


def spelled(need: str) -> str:
    """Spells a flag that another needs as people type it: `--name VALUE`."""
    return f"--{need.replace('=', ' ')}"


def _near(args: flags.FlagValues, name: str) -> str:
    """Suggests the nearest flag and the nearest settings."""
    nearest = [f"--{known}" for known in near(name, args)[:1]]
    if "set" in args:
        uses = declared(args["set"]).uses
        known = [key for key in settings() if key in uses]
        nearest += [f"--set {key}=..." for key in near(name, known)]
    return suggestion(nearest)


def command_help(command: Any, name: str) -> str:
    """Formats `bigbird-ja COMMAND --help`: the docstring, the example, the command's flags.

    Args:
        command: its module.
        name: as it is typed.
    """
    about = textwrap.dedent(command.__doc__ or "").strip().split("\n\n")
    about[0] = f"bigbird-ja {name}: {about[0]}"
    paragraphs = [text if text.startswith(" ") else textwrap.fill(text, 79) for text in about]
    lines = ["\n\n".join(paragraphs), "", "Example:", f"  {command.EXAMPLE}"]
    for heading, listed in sections(flags_of(command)).items():
        lines += ["", f"{heading}:"]
        for flag in listed:
            default = default_text(flag)
            shown = default if declared(flag).required else f"default: {default}"
            text = meaning(flag) + (f" ({shown})" if default != "off" else "")
            lines.append(f"  {form(flag)}")
            lines += textwrap.wrap(text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def sections(args: flags.FlagValues) -> dict[str, list[flags.Flag]]:
    """Groups the flags by the headings of `--help`, required ones first."""
    result: dict[str, list[flags.Flag]] = {"Required": [], "Flags": []}
    last: dict[str, list[flags.Flag]] = {"Settings": [], "In most commands": []}
    for flag in own_flags(args):
        option = declared(flag)
        if flag.name in _COMMON or option.setting:
            last["Settings" if option.setting else "In most commands"].append(flag)
        else:
            heading = "Required" if option.required else option.group or "Flags"
            result.setdefault(heading, []).append(flag)
    return {heading: listed for heading, listed in {**result, **last}.items() if listed}


def form(flag: flags.Flag) -> str:
    """Spells a flag: `--name INT`."""
    option = declared(flag)
    if option.kind is bool:
        return f"--{flag.name}" if flag.default is False else f"--[no_]{flag.name}"
    return f"--{flag.name} {option.form or '|'.join(option.choices) or _FORMS[option.kind]}"


def meaning(flag: flags.Flag) -> str:
    """Explains a flag: help, unit, range, the setting that it sets, its conditions."""
    option = declared(flag)
    allowed = "" if option.choices else option.allowed
    notes = [
        ", ".join(filter(None, (option.unit, allowed))),
        f"sets {option.setting}" if option.setting else "",
        f"with {spelled(option.needs)}" if option.needs else "",
        "repeatable" if option.many and "repeatable" not in option.meaning else "",
    ]
    shown = "; ".join(filter(None, notes))
    return " ".join(option.meaning.split()) + (f" [{shown}]" if shown else "")


def default_text(flag: flags.Flag) -> str:
    """Words a flag's default for people, or `required`."""
    option = declared(flag)
    if option.required:
        return f"required except with --{option.unless}" if option.unless else "required"
    if option.setting:
        option = settings()[option.setting]
    if option.default == []:
        return option.none or "none"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return option.default_text if option.default != "" else '""'
