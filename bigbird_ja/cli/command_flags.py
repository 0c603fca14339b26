"""Declaration and parsing of a command's flags.

A command declares its flags on a `Flags`, from which parsing, `--help` and docs/commands are
derived. A flag that sets a setting is declared by the setting's key.
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
from bigbird_ja.settings.suggestions import find_nearest, format_suggestion
from bigbird_ja.settings.variants import OPTIONS, get_parameter

# Parsed flags of a command.
Args = flags.FlagValues

# Advice for flags that other trainers have and `bigbird-ja` lacks.
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
    """Flag of a command.

    Attributes:
        setting: Key of the setting that the flag sets, or "".
        form: Placeholder for the value in `--help`, or "" for the name of the type.
        group: Heading in `--help`.
        many: Whether the flag may be repeated.
        commas: Whether the value is a list separated by commas.
        required: Whether the flag is required.
        unless: Another flag. If it is given, this flag is not required.
        needs: Flag, or flag=value, without which this flag has no effect.
        excludes: Flags that cannot be combined with this flag.
        uses: For --set and --config, keys of settings that have an effect in the command.
    """

    setting: str = ""
    form: str = ""
    group: str = ""
    many: bool = False
    commas: bool = False
    required: bool = False
    unless: str = ""
    needs: str = ""
    excludes: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


class Flags:
    """Declarations of one command's flags.

    Args:
        values: absl container to which the flags are added.

    Attributes:
        group: Heading in `--help` for the flags that are declared next.
    """

    def __init__(self, values: flags.FlagValues) -> None:
        self.values = values
        self.group = ""

    def text(self, name: str, help: str, *, default: Any = None, **about: Any) -> None:
        """Declare a text flag. `about` contains further arguments of `_declare`."""
        self._declare(name, str, default, help, **about)

    def path(self, name: str, help: str, *, default: str | None = None, **about: Any) -> None:
        """Declare a path flag, whose value cannot be empty."""
        self._declare(name, str, default, help, **{"filled": True, "form": "PATH", **about})

    def integer(self, name: str, default: int | None, help: str, **about: Any) -> None:
        """Declare an integer flag. `about` contains further arguments of `_declare`."""
        self._declare(name, int, default, help, **about)

    def number(self, name: str, default: float | None, help: str, **about: Any) -> None:
        """Declare a number flag. `about` contains further arguments of `_declare`."""
        self._declare(name, float, default, help, **about)

    def choice(self, name: str, choices: Sequence[str], help: str, **about: Any) -> None:
        """Declare a flag with choices. Its default is `about["default"]` or the first choice."""
        default = about.pop("default", choices[0])
        self._declare(name, str, default, help, choices=tuple(choices), **about)

    def switch(self, name: str, help: str, *, default: bool | None = False, **about: Any) -> None:
        """Declare a boolean flag."""
        self._declare(name, bool, default, help, **about)

    def setting(self, key: str, **about: Any) -> None:
        """Declare a flag that sets the setting `key`, with the type and help of the setting."""
        self._add(Flag(f"--{get_parameter(key)}", OPTIONS[key].type, None, setting=key, **about))

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

        Args:
            name: name of the flag.
            kind: type of the value.
            default: default value.
            help: description.
            low: minimum of a number.
            high: maximum of a number.
            unit: unit of a number.
            none: meaning of an omitted value, such as "all records".
            choices: allowed texts.
            filled: whether a text must not be empty.
            about: further fields of `Flag`.
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
    """Parser of a flag's value, or of its values separated by commas."""

    def __init__(self, *, option: Flag) -> None:
        self.option = option

    def parse(self, argument: Any) -> Any:
        """Return the flag's value, or the list of its values.

        Raises:
            ValueError: A value has the wrong type or is out of range.
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


def collect_flags(command: Any) -> flags.FlagValues:
    """Return a command's flags and the common flags, before parsing.

    `--config` and `--set` are common to all commands whose modules define `SETTINGS`.
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
        BadInput: A flag is unknown, missing or has no effect, a value is invalid, or there is an
            unexpected argument.
    """
    args = collect_flags(command)
    arguments = [_normalize_argument(word, args) for word in arguments]
    see = f": see `bigbird-ja {name} --help`"
    for word in arguments:
        if word.lstrip("-").split("=")[0] == "flagfile" and word.startswith("-"):
            # absl would read more flags from the file that `--flagfile` names.
            raise BadInput(f"unknown flag {word.split('=')[0]}{see}")
    positional = getattr(command, "POSITIONAL", "")
    try:
        words = args([f"bigbird-ja {name}", *arguments])[1:]
        has_positional = bool(positional and words and not args[positional].present)
        if has_positional:
            args[positional].parse(words.pop(0))
    except flags.UnrecognizedFlagError as error:
        if serves := _EXPECTED.get(error.flagname.replace("-", "_")):
            raise BadInput(f"no flag --{error.flagname}: {serves}") from error
        near = _suggest_names(args, error.flagname)
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
        raise _make_stray_error(args, words, see)
    _check_required(args, see)
    for flag in own_flags(args):
        if flag.present:
            _check_combination(args, flag)
    return args


def _normalize_argument(word: str, args: flags.FlagValues) -> str:
    """Convert `--seq-length=64` to `--seq_length=64`, and `--no-cache` to `--nocache`."""
    name, equals, value = word.partition("=")
    name = name[2:].replace("-", "_")
    if name.startswith("no_") and name[3:] in args and declared(args[name[3:]]).kind is bool:
        name = f"no{name[3:]}"
    is_known = name in args or name.removeprefix("no") in args
    return f"--{name}{equals}{value}" if word.startswith("--") and is_known else word


def _make_stray_error(args: flags.FlagValues, words: Sequence[str], see: str) -> BadInput:
    """Return the error for unexpected arguments, which suggests a flag for them."""
    listed = own_flags(args)
    meant = next((f for f in listed if declared(f).required and not declared(f).unless), None)
    if meant is None:
        return BadInput(f"unexpected argument {words[0]!r}{see}")
    advice = f"did you mean --{meant.name} {words[0]}?"
    # Several arguments are probably a pattern that the shell has replaced by names of files.
    if len(words) > 1 or meant.present:
        advice = f"for several files quote a pattern: --{meant.name} 'FOLDER/*'"
        advice += f", or repeat --{meant.name}" if declared(meant).many else ""
    return BadInput(f"unexpected argument {words[0]!r}: {advice}")


def own_flags(args: flags.FlagValues) -> list[flags.Flag]:
    """List the flags in the order of declaration, without synonyms such as `-h`."""
    return [args[name] for name in args if args[name].name == name]


def _check_required(args: flags.FlagValues, see: str) -> None:
    """Check that no required flag is missing."""
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
        raise BadInput(f"{', '.join(missing)} {verb} required{excuse}{see}")


def _check_combination(args: flags.FlagValues, flag: flags.Flag) -> None:
    """Check the conditions `needs` and `excludes` of a flag that the user has set."""
    option = declared(flag)
    if option.needs:
        check_given(args, f"--{flag.name}", option.needs)
    for other in option.excludes:
        if args[other].present:
            raise BadInput(f"--{flag.name} and --{other} cannot be combined: remove one of them")


def check_given(args: flags.FlagValues, what: str, need: str) -> None:
    """Check that the flag `need` is given, without which the flag `what` has no effect."""
    name, equals, value = need.partition("=")
    if not (args[name].value == value if equals else args[name].value):
        raise BadInput(
            f"{what} has no effect without {format_need(need)}: add {format_need(need)}, or remove"
            f" {what}"
        )


def format_need(need: str) -> str:
    """Format a required flag as users type it: `--name VALUE`."""
    return f"--{need.replace('=', ' ')}"


def _suggest_names(args: flags.FlagValues, name: str) -> str:
    """Return a hint for a misspelled flag: the flag and the settings with similar names."""
    nearest = [f"--{known}" for known in find_nearest(name, args)[:1]]
    if "set" in args:
        uses = declared(args["set"]).uses
        known = [key for key in OPTIONS if key in uses]
        nearest += [f"--set {key}=..." for key in find_nearest(name, known)]
    return format_suggestion(nearest)
