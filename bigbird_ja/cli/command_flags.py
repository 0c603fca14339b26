"""Flags of a command: declaration and parsing.

A command declares its flags on a `Flags`; parsing, `--help` and docs/commands follow from that. A
flag that sets a setting is declared by the setting's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from absl import flags
from msgspec import Meta

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.option import Option, summarize_keys
from bigbird_ja.settings.schema import about as details
from bigbird_ja.settings.suggestions import near, suggestion
from bigbird_ja.settings.variants import OPTIONS, parameter_of

Args = flags.FlagValues  # the flags of a command, parsed

# Flags of other trainers without a counterpart here, with the advice for each.
_EXPECTED = {
    **dict.fromkeys(("spot", "preemptible"), "`launch` rents spot TPUs without a flag"),
    **dict.fromkeys(
        ("resume", "resume_from", "resume_from_checkpoint"), "rerun the same command to resume"
    ),
    **dict.fromkeys(
        ("gpu", "gpus", "use_gpu", "cuda", "device"),
        "a GPU is used without a flag if JAX finds one: `bigbird-ja doctor` shows it",
    ),
}


@dataclass(frozen=True)
class Flag(Option):
    """Flag of a command."""

    setting: str = ""  # key of the setting that it sets
    form: str = ""  # placeholder for the value in `--help`; by default the type
    group: str = ""  # heading in `--help`
    many: bool = False  # repeatable
    commas: bool = False  # values separated by commas
    required: bool = False
    unless: str = ""  # flag that makes this required one optional
    needs: str = ""  # flag, or flag=value, without which it has no effect
    excludes: tuple[str, ...] = ()  # flags that it cannot be combined with
    uses: tuple[str, ...] = ()  # for --set and --config: keys of settings that have an effect


class Flags:
    """Declarations of the flags of one command.

    Args:
        values: container of flags, by absl.
    """

    def __init__(self, values: flags.FlagValues) -> None:
        self.values = values
        self.group = ""  # heading of `--help` for the flags declared next

    def text(self, name: str, help: str, *, default: Any = None, **about: Any) -> None:
        """Declare a text flag.

        `none` describes a missing value, `many` makes it repeatable.
        """
        self._declare(name, str, default, help, **about)

    def path(self, name: str, help: str, *, default: str | None = None, **about: Any) -> None:
        """Declare a path flag, whose value cannot be empty."""
        self._declare(name, str, default, help, **{"filled": True, "form": "PATH", **about})

    def integer(self, name: str, default: int | None, help: str, **about: Any) -> None:
        """Declare an integer flag.

        `low` and `high` are its range.
        """
        self._declare(name, int, default, help, **about)

    def number(self, name: str, default: float | None, help: str, **about: Any) -> None:
        """Declare a number flag.

        `low` and `high` are its range.
        """
        self._declare(name, float, default, help, **about)

    def choice(self, name: str, choices: Sequence[str], help: str, **about: Any) -> None:
        """Declare a choice flag.

        The default is the first of `choices` if none is given.
        """
        default = about.pop("default", choices[0])
        self._declare(name, str, default, help, choices=tuple(choices), **about)

    def switch(self, name: str, help: str, *, default: bool | None = False, **about: Any) -> None:
        """Declare a boolean flag."""
        self._declare(name, bool, default, help, **about)

    def setting(self, key: str, **about: Any) -> None:
        """Declare a flag for a setting, whose own declaration describes it."""
        self._add(Flag(f"--{parameter_of(key)}", OPTIONS[key].type, None, setting=key, **about))

    def _declare(
        self,
        name: str,
        kind: Any,
        default: Any,
        help: str,
        *,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
        none: str = "",
        choices: tuple[str, ...] = (),
        filled: bool = False,
        **about: Any,
    ) -> None:
        """Declare a flag.

        `about` contains fields of `Flag`.
        """
        described: Any = Literal[choices] if choices else kind
        span = None if low is None or high is None else (low, high)
        about_value = details(help, span, unit, none=none)
        described = Annotated[described, about_value]
        if filled:
            described = Annotated[described, Meta(min_length=1)]
        self._add(Flag(f"--{name}", described, default, group=self.group, **about))

    def _add(self, option: Flag) -> None:
        name, default = option.key.removeprefix("--"), option.default
        parser = _Parser(option=option)
        serializer: flags.ArgumentSerializer = flags.ArgumentSerializer()
        flag: Any
        if option.kind is bool:
            flag = flags.BooleanFlag(name, default, option.meaning)
            flag.parser = parser
        elif option.many:
            flag = flags.MultiFlag(parser, serializer, name, default or [], option.meaning)
        else:
            flag = flags.Flag(parser, serializer, name, default, option.meaning)
        flag.declared = option
        flags.DEFINE_flag(flag, flag_values=self.values)


class _Parser(flags.ArgumentParser):
    """Parser of a value, or of values separated by commas, as declared."""

    def __init__(self, *, option: Flag) -> None:
        self.option = option

    def parse(self, argument: Any) -> Any:
        """Return the value or list of values.

        Raises:
            ValueError: Another type, or out of range.
        """
        if not self.option.commas:
            return self.option.read(argument)
        if isinstance(argument, str):
            is_empty = not argument and self.option.kind is str
            argument = [] if is_empty else [word.strip() for word in argument.split(",")]
        return [self.option.read(word) for word in argument]


def declared(flag: flags.Flag) -> Flag:
    """Return the declaration of a flag."""
    return flag.declared  # type: ignore[attr-defined]


def flags_of(command: Any) -> flags.FlagValues:
    """Collect a command's own flags and the common ones, not yet parsed.

    `--config` and `--set` are included if the command lists the settings that it uses, in its
    `SETTINGS`.
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
            required=getattr(command, "REQUIRES_CONFIG", False),
            form="NAME|FILE",
            uses=uses,
        )
        define.text(
            "set",
            "Value of one setting, as section.key=value (repeatable; see `config`). Used here:"
            f" {summarize_keys(uses, OPTIONS)}.",
            many=True,
            form="KEY=VALUE",
            uses=uses,
        )
    define.switch("json", "Print only the results, as one line of JSON, to standard output.")
    define.switch("help", "Show this help.")
    values["h"] = values["help"]
    command.define_flags(define)
    return values


def parse(command: Any, name: str, arguments: Sequence[str]) -> flags.FlagValues:
    """Parse a command's flags.

    Raises:
        BadInput: An unknown flag, a value that does not parse, a missing flag, one that has no
            effect with the others, or a stray argument.
    """
    args = flags_of(command)
    arguments = [_normalize_argument(word, args) for word in arguments]
    see = f": see `bigbird-ja {name} --help`"
    for word in arguments:
        if word.lstrip("-").split("=")[0] == "flagfile" and word.startswith("-"):
            raise BadInput(f"unknown flag {word.split('=')[0]}{see}")  # absl would read the file
    positional = getattr(command, "POSITIONAL", "")
    try:
        words = args([f"bigbird-ja {name}", *arguments])[1:]
        has_positional = bool(positional and words and not args[positional].present)
        if has_positional:
            args[positional].parse(words.pop(0))
    except flags.UnrecognizedFlagError as error:
        if serves := _EXPECTED.get(error.flagname.replace("-", "_")):
            raise BadInput(f"no flag --{error.flagname}: {serves}") from error
        near = _near(args, error.flagname)
        raise BadInput(f"unknown flag --{error.flagname}{near}{see}") from error
    except flags.Error as error:
        if isinstance(error.__context__, BadInput):
            raise error.__context__ from error
        raise BadInput(" ".join(str(error).split()) + see) from error
    if args.help:
        return args
    if words and has_positional:
        raise BadInput(f"unexpected argument {words[0]!r}{see}")
    if words:
        raise _stray_argument_error(args, words, see)
    _check_required(args, see)
    for flag in own_flags(args):
        if flag.present:
            _check_combination(args, flag)
    return args


def _normalize_argument(word: str, args: flags.FlagValues) -> str:
    """Turn `--seq-length=64` into `--seq_length=64`, `--no-cache` into `--nocache`."""
    name, equals, value = word.partition("=")
    name = name[2:].replace("-", "_")
    if name.startswith("no_") and name[3:] in args and declared(args[name[3:]]).kind is bool:
        name = f"no{name[3:]}"
    is_known = name in args or name.removeprefix("no") in args
    return f"--{name}{equals}{value}" if word.startswith("--") and is_known else word


def _stray_argument_error(args: flags.FlagValues, words: Sequence[str], see: str) -> BadInput:
    """Return the error for arguments without a flag, naming the flag that is likely meant."""
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
    """List the flags, each once, in the order of declaration."""
    return [args[name] for name in args if args[name].name == name]


def _check_required(args: flags.FlagValues, see: str) -> None:
    """Refuse a command line that lacks required flags, naming all of them."""
    missing, excuses = [], set[str]()
    for flag in own_flags(args):
        option = declared(flag)
        is_excused = option.unless and args[option.unless].value
        if option.required and not is_excused and flag.value in (None, []):
            missing.append(f"--{flag.name}")
            excuses.add(f" (or --{option.unless})" if option.unless else "")
    if missing:
        excuse = excuses.pop() if len(excuses) == 1 else ""
        verb = "is" if len(missing) == 1 else "are"
        raise BadInput(f"{', '.join(missing)} {verb} needed{excuse}{see}")


def _check_combination(args: flags.FlagValues, flag: flags.Flag) -> None:
    """Refuse a flag that has no effect with the others."""
    option = declared(flag)
    if option.needs:
        check_given(args, f"--{flag.name}", option.needs)
    for other in option.excludes:
        if args[other].present:
            raise BadInput(f"--{flag.name} and --{other}: give one of them")


def check_given(args: flags.FlagValues, what: str, need: str) -> None:
    """Refuse a flag or setting that has no effect without a missing flag."""
    name, equals, value = need.partition("=")
    if not (args[name].value == value if equals else args[name].value):
        raise BadInput(
            f"{what} has no effect without {format_need(need)}: add that, or leave it out"
        )


def format_need(need: str) -> str:
    """Format a required flag as users type it: `--name VALUE`."""
    return f"--{need.replace('=', ' ')}"


def _near(args: flags.FlagValues, name: str) -> str:
    """Suggest the nearest flag and the nearest settings."""
    nearest = [f"--{known}" for known in near(name, args)[:1]]
    if "set" in args:
        uses = declared(args["set"]).uses
        known = [key for key in OPTIONS if key in uses]
        nearest += [f"--set {key}=..." for key in near(name, known)]
    return suggestion(nearest)
