"""Every option of every command, with every kind of value that it must not take."""

from __future__ import annotations

from collections.abc import Iterator

from absl import flags

from bigbird_ja.cli import command_flags, main
from bigbird_ja.settings.option import Option
from bigbird_ja.settings.schema import OPTIONS
from testkit.hostile.case import ANY, REFUSED, REMOTE, Case, commands, good_arguments, with_flag

_NO_NUMBER = ("x", "", "nan", "NaN", "inf", "-inf", "1e999", "0x", "１２", "1,000", "--", "1_0_")
_NO_INTEGER = ("1.5", "1e30", str(2**70), str(-(2**70)), "9" * 5000)
_NO_BOOL = ("maybe", "2", "", "nan")
_NO_CHOICE = ("no-such-choice", "", "nan", "0", "\udcff")
# A text may be anything, so these may be taken; they must not end in a traceback.
_ODD_TEXT = ("", "\udcff\udcfe", "x" * 5000, "a\nb", "\x1b[2J", "-", "~", "{}", "%s%n")


def cases() -> Iterator[Case]:
    """All of them."""
    for command in commands():
        yield from _of_command(command)
        yield from _of_settings(command)
        yield Case("stray word", command, (*good_arguments(command), "stray", "words"))
        yield Case("unknown flag", command, (*good_arguments(command), "--no_such_flag=1"))
        yield Case("flag without a value", command, (*good_arguments(command), "--json=maybe"))


def _of_command(command: str) -> Iterator[Case]:
    declared = command_flags.flags_of(main.load_command(command))
    for name in sorted(declared):
        flag = declared[name]
        if name != flag.name or name == "help":  # a short name, or one that ends all else
            continue
        for value in _bad_values(flag):
            yield Case(f"--{name}={value[:40]!a}", command, with_flag(command, name, value))
        if _is_text(flag) and command not in REMOTE:
            for value in _ODD_TEXT:
                words = with_flag(command, name, value)
                yield Case(f"--{name} odd {value[:12]!a}", command, words, ANY)


def _bad_values(flag: flags.Flag) -> Iterator[str]:
    kind = flag.flag_type().removeprefix("multi ")
    if kind == "bool":
        yield from _NO_BOOL
    elif getattr(flag.parser, "enum_values", None):
        yield from _NO_CHOICE
    elif kind in ("int", "float"):
        yield from _NO_NUMBER
        if kind == "int":
            yield from _NO_INTEGER
        yield from _outside(flag.parser.lower_bound, flag.parser.upper_bound, kind)


def _outside(low: float | None, high: float | None, kind: str) -> Iterator[str]:
    for bound, value in ((low, -1), (high, 1)):
        if bound is not None and abs(bound) != float("inf"):
            step = 1 if kind == "int" else max(0.5, abs(bound) / 1000)
            yield str(bound + value * step)
            yield str(bound + value * max(1, abs(bound)) * 10**6)


def _is_text(flag: flags.Flag) -> bool:
    kind = flag.flag_type().removeprefix("multi ")
    return kind in ("string", "comma separated list of strings") and flag.name != "set"


def _of_settings(command: str) -> Iterator[Case]:
    """`--set` of every setting, where the command has settings at all."""
    declared = command_flags.flags_of(main.load_command(command))
    if "set" not in declared:
        return
    for text in ("", "=", "model", "model.num_layers", "model.=1", ".x=1", "a.b.c=1", "model=1"):
        yield Case(f"--set {text!r}", command, (*good_arguments(command), f"--set={text}"))
    for key, option in OPTIONS.items():
        for value in _bad_settings(option):
            words = (*good_arguments(command), f"--set={key}={value}")
            yield Case(f"--set {key}={value[:40]!a}", command, words, REFUSED)


def _bad_settings(option: Option) -> Iterator[str]:
    yield from ("[1, 2]", "{a: 1}", "!!python/object:os.system x", "[", "&a [*a, *a]", "''")
    yield "[" * 10_000
    if not option.none:
        yield "null"
    if option.kind is bool:
        yield from ("maybe", "2", ".nan")
    elif option.kind is str:
        yield from ("5", ".nan", "true", "x" * 5000, "a\\nb" if option.choices else '"a\\nb"')
        if option.choices:
            yield "no-such-choice"
    else:
        yield from ("x", ".nan", ".inf", "-.inf", "1e999", "true", "2026-13-45")
        yield from ("1e30", "-1e30", "9" * 5000)
        yield from _outside(option.low, option.high, option.kind.__name__)
        yield from (str(bound) for bound in (option.above, option.below) if bound is not None)
        if option.kind is int:
            yield from ("1.5", str(2**70))
