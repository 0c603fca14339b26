"""A command's flags, each declared once: type, range, choices, default, and what it goes with.

A command declares its flags on a `Flags`; parsing, `--help` and docs/commands follow from that. A
flag that sets a setting is declared by the setting's key alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from absl import flags

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import Option, in_words, is_used, near, near_settings, suggestion

if TYPE_CHECKING:
    from bigbird_ja.settings.resolve import Override
    from bigbird_ja.settings.schema import Config

_FORMS = {int: "INT", float: "FLOAT", str: "STRING"}
_SWITCH = {
    **dict.fromkeys(("true", "t", "1", "yes", "y"), True),
    **dict.fromkeys(("false", "f", "0", "no", "n"), False),
}


def _settings() -> Mapping[str, Option]:
    """All settings; not imported for a command that has none, whose help need not wait."""
    from bigbird_ja.settings.schema import OPTIONS

    return OPTIONS


@dataclass(frozen=True)
class Declared:
    """What is known about a flag beyond its option."""

    option: Option
    setting: str = ""  # the setting that it sets
    required: bool = False
    unless: tuple[str, ...] = ()  # flags with which a required one is not
    needs: tuple[str, ...] = ()  # flags, or flag=value, of which one must be there too
    excludes: tuple[str, ...] = ()  # flags that it cannot go with
    uses: tuple[str, ...] = ()  # of --set and --config: the sections and keys that have an effect


class Flags:
    """Declares the flags of one command.

    Args:
        values: where absl keeps them.
    """

    def __init__(self, values: flags.FlagValues) -> None:
        self.values = values

    def text(self, name: str, help: str, *, default: Any = None, **about: Any) -> None:
        """A text; `none` says what it is where it is not given, `many` that it is repeatable."""
        self._declare(name, str, default, help, **about)

    def path(self, name: str, help: str, *, default: str | None = None, **about: Any) -> None:
        """A path, which cannot be empty."""
        self._declare(name, str, default, help, filled=True, **about)

    def integer(self, name: str, default: int | None, help: str, **about: Any) -> None:
        """A whole number; `low` and `high` are its range."""
        self._declare(name, int, default, help, **about)

    def number(self, name: str, default: float | None, help: str, **about: Any) -> None:
        """A number; `low` or `above`, and `high` or `below`, are its range."""
        self._declare(name, float, default, help, **about)

    def choice(self, name: str, choices: Sequence[str], help: str, **about: Any) -> None:
        """One of `choices`, of which the first is the default where none is given."""
        default = about.pop("default", choices[0])
        self._declare(name, str, default, help, choices=tuple(choices), **about)

    def switch(self, name: str, help: str, *, default: bool | None = False, **about: Any) -> None:
        """On or off."""
        self._declare(name, bool, default, help, **about)

    def words(self, name: str, default: Sequence[str], help: str, **about: Any) -> None:
        """Texts separated by commas."""
        self._declare(name, str, list(default), help, commas=True, **about)

    def integers(self, name: str, default: Sequence[int], help: str, **about: Any) -> None:
        """Whole numbers separated by commas; `low` and `high` are their range."""
        self._declare(name, int, list(default), help, commas=True, **about)

    def _declare(self, name: str, kind: type, default: Any, help: str, **about: Any) -> None:
        """`about` holds fields of `Option`, and what `_add` takes."""
        known = {field.name for field in dataclasses.fields(Option)}
        option = {key: about.pop(key) for key in list(about) if key in known}
        self._add(Option(f"--{name}", kind, default, help, **option), **about)

    def setting(self, key: str, name: str = "", **about: Any) -> None:
        """A flag of its own for a setting: all about it is in the setting's declaration."""
        option = _settings()[key]
        flag = f"--{name or option.name}"
        own = dataclasses.replace(option, key=flag, default=None)
        self._add(own, setting=key, **about)

    def _add(
        self, option: Option, *, many: bool = False, commas: bool = False, **about: Any
    ) -> None:
        name = option.key.removeprefix("--")
        for key in ("needs", "excludes", "unless"):
            names_ = about.get(key, ())
            about[key] = (names_,) if isinstance(names_, str) else tuple(names_)
        parser, default = _Parser(option=option), option.default
        flag: Any
        if option.kind is bool:
            flag = flags.BooleanFlag(name, default, option.help)
            flag.parser = parser
        elif many:
            flag = flags.MultiFlag(parser, _serializer(), name, default or [], option.help)
        elif commas:
            flag = flags.Flag(_List(option=option), _serializer(), name, default, option.help)
        else:
            flag = flags.Flag(parser, _serializer(), name, default, option.help)
        flag.declared = Declared(option, **about)
        flags.DEFINE_flag(flag, flag_values=self.values)


class _Parser(flags.ArgumentParser):
    """Reads one value as its declaration says."""

    def __init__(self, *, option: Option) -> None:
        self.option = option
        self.lower_bound, self.upper_bound = option.low, option.high
        self.enum_values = list(option.choices)
        self.syntactic_help = ""

    def parse(self, argument: Any) -> Any:
        """The value.

        Raises:
            BadInput: of another type or out of range.
        """
        if self.option.kind is bool and isinstance(argument, str):
            argument = _SWITCH.get(argument.lower(), argument)
        return self.option.read(argument, "")

    def flag_type(self) -> str:
        """The kind of value, in absl's words."""
        return {int: "int", float: "float", bool: "bool", str: "string"}[self.option.kind]


class _List(_Parser):
    """Reads values separated by commas."""

    def parse(self, argument: Any) -> Any:
        """The list of values."""
        if isinstance(argument, str):
            is_empty = not argument and self.option.kind is str
            argument = [] if is_empty else [word.strip() for word in argument.split(",")]
        return [super(_List, self).parse(word) for word in argument]

    def flag_type(self) -> str:
        """The kind of value, in absl's words."""
        return "comma separated list of strings"


def _serializer() -> flags.ArgumentSerializer:
    return flags.ArgumentSerializer()


def declared(flag: flags.Flag) -> Declared:
    """What the command declared of a flag."""
    return flag.declared  # type: ignore[attr-defined]


def flags_of(command: Any) -> flags.FlagValues:
    """A command's own flags and the ones that every command has, not yet parsed.

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
            "Preset (`bigbird-ja config` lists them) or YAML file of settings.",
            none="the settings' defaults",
            uses=uses,
        )
        define.text(
            "set",
            "Sets one setting: --set section.key=value (repeatable; docs/settings.md). Of use here:"
            f" {in_words(uses, _settings())}.",
            many=True,
            uses=uses,
        )
    define.switch("json", "Prints the results as one line of JSON, and nothing else, on standard"
                  " output.")  # fmt: skip
    flags.DEFINE_bool("help", False, "Shows this help.", short_name="h", flag_values=values)
    option = Option("--help", bool, False, "Shows this help.")
    values["help"].declared = Declared(option)  # type: ignore[attr-defined]
    command.define_flags(define)
    return values


def parse(command: Any, name: str, arguments: Sequence[str]) -> flags.FlagValues:
    """Parses a command's flags.

    Raises:
        BadInput: an unknown flag, a value that does not parse, one that is missing or that has no
            use beside the others, or a stray argument.
    """
    args = flags_of(command)
    arguments = [_with_underscores(word) for word in arguments]
    see = f": see `bigbird-ja {name} --help`"
    for word in arguments:
        if word.lstrip("-").split("=")[0] == "flagfile" and word.startswith("-"):
            raise BadInput(f"unknown flag {word.split('=')[0]}{see}")  # absl would read the file
    try:
        rest = args([f"bigbird-ja {name}", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        if error.flagname in ("set", "config"):
            raise BadInput(
                f"unknown flag --{error.flagname}: this command uses no settings"
            ) from error
        near = _near(args, error.flagname)
        raise BadInput(f"unknown flag --{error.flagname}{near}{see}") from error
    except flags.Error as error:
        raise BadInput(" ".join(str(error).split()) + see) from error
    if args.help:
        return args
    _take_positional(args, getattr(command, "POSITIONAL", ""), rest, see)
    for flag in own_flags(args):
        _check_company(args, flag, see)
    return args


def _with_underscores(word: str) -> str:
    """`--seq-length=64` as `--seq_length=64`."""
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name[:2] == "--" else word


def own_flags(args: flags.FlagValues) -> list[flags.Flag]:
    """The flags, each once, by name."""
    return [args[name] for name in sorted(args) if args[name].name == name]


def _take_positional(args: flags.FlagValues, name: str, rest: list[str], see: str) -> None:
    if name and len(rest) == 1 and not args[name].present:
        args[name].parse(rest[0])
    elif rest:
        raise BadInput(f"unexpected argument {rest[0]!r}{see}")


def _check_company(args: flags.FlagValues, flag: flags.Flag, see: str) -> None:
    """Whether what a flag requires or excludes is there."""
    about = declared(flag)
    is_excused = any(args[name].value for name in about.unless)
    if about.required and not is_excused and flag.value in (None, []):
        or_else = f" (or {_either(about.unless)})" if about.unless else ""
        raise BadInput(f"--{flag.name} is needed{or_else}{see}")
    if not flag.present:
        return
    if about.needs and not any(_is_given(args, need) for need in about.needs):
        needed = " or ".join(f"--{need}" for need in about.needs)
        raise BadInput(f"--{flag.name} has no effect without {needed}: add that, or leave it out")
    for other in about.excludes:
        if args[other].present:
            raise BadInput(f"--{flag.name} and --{other}: give one of them")


def _either(suggestions: Sequence[str]) -> str:
    return " or ".join(f"--{name}" for name in suggestions)


def _is_given(args: flags.FlagValues, need: str) -> bool:
    name, equals, value = need.partition("=")
    return args[name].value == value if equals else bool(args[name].value)


def _near(args: flags.FlagValues, name: str) -> str:
    """The nearest flag and the nearest settings."""
    nearest = [f"--{known}" for known in near(name, args)]
    if "set" in args:
        uses = declared(args["set"]).uses
        known = [key for key in _settings() if is_used(key, uses)]
        nearest += [f"--set {key}=..." for key in near_settings(name, known)[:2]]
    return suggestion(nearest)


def given_settings(args: flags.FlagValues) -> list[Override]:
    """The settings that flags of their own gave."""
    from bigbird_ja.settings.resolve import Override

    return [
        Override(declared(flag).setting, flag.value, f"--{flag.name}")
        for flag in own_flags(args)
        if declared(flag).setting and flag.value is not None
    ]


def resolve(args: flags.FlagValues) -> tuple[Config, list[Override]]:
    """The config that a command's flags ask for; see `config.resolve`.

    Raises:
        BadInput: also a setting that has no effect without a flag that is not there.
    """
    from bigbird_ja.settings.resolve import resolve_config

    uses = declared(args["set"]).uses
    changes = args.continue_with if "continue_with" in args else ()
    config, overrides = resolve_config(args.config, args.set, given_settings(args), uses, changes)
    for override in overrides:
        need = _settings()[override.key].needs_flag
        if override.source != "--set" or not need:
            continue
        if need.partition("=")[0] not in args:
            raise BadInput(f"--set {override.key} has no effect in this command: leave it out")
        if not _is_given(args, need):
            raise BadInput(
                f"--set {override.key} has no effect without --{need}: add that, or leave it out"
            )
    return config, overrides


def echo(
    args: flags.FlagValues, config: Config, overrides: Sequence[Override], run: str | None = None
) -> str:
    """The settings that take effect for this command and are not the preset's, or those of the
    run that goes on (its `config.yaml`)."""
    from bigbird_ja.settings.resolve import echo_settings

    return echo_settings(config, overrides, declared(args["set"]).uses, run)


def form(flag: flags.Flag) -> str:
    """How a flag is written, without the dashes: `name=INT`."""
    option = declared(flag).option
    if option.kind is bool:
        return f"[no]{flag.name}"
    return f"{flag.name}={'|'.join(option.choices) or _FORMS[option.kind]}"


def meaning(flag: flags.Flag) -> str:
    """What a flag does: help, unit, range, the setting that it sets, what it goes with."""
    about = declared(flag)
    option = about.option
    notes = [option.unit, "" if option.choices else option.allowed]
    notes = [", ".join(filter(None, notes))]
    if about.setting:
        notes.append(f"sets {about.setting}")
    if about.needs:
        notes.append(f"with {' or '.join(f'--{need}' for need in about.needs)}")
    if isinstance(flag, flags.MultiFlag) and "repeatable" not in option.help:
        notes.append("repeatable")
    said = "; ".join(filter(None, notes))
    return " ".join(option.help.split()) + (f" [{said}]" if said else "")


def default_text(flag: flags.Flag) -> str:
    """`required`, or a flag's default for people; of a setting's flag, the setting's."""
    about = declared(flag)
    if about.required:
        return f"required except with {_either(about.unless)}" if about.unless else "required"
    option = _settings()[about.setting] if about.setting else about.option
    if option.default == []:
        return option.none or "none"
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    return option.default_text if option.default != "" else '""'


def shown_default(flag: flags.Flag) -> str:
    """`default_text` as `--help` shows it."""
    text = default_text(flag)
    return text if declared(flag).required else f"default: {text}"
