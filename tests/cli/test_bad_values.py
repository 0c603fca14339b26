"""Every declared option refuses every kind of value that it does not take, in one line.

The values are generated from the declarations, so a new flag or setting needs no line here.
"""

import json

import pytest

from bigbird_ja import cli
from bigbird_ja.cli.command_flags import declared
from bigbird_ja.settings.schema import OPTIONS
from tests.cli.test_command_flags import enough, flags_of, parse

NO_NUMBERS = ("x", "", "nan", "inf", "-inf", "1e999", "1e30", "-1e30", "9" * 5000)
NO_NUMBERS += ("0x", "１２", "1_0", "--")
NO_YAML = ("[1, 2]", "{a: 1}", "!!python/object:os.system x", "[", "&a [*a, *a]", "[" * 10_000)
# Parses with anything that a file system or a service would have to refuse.
ODD_TEXTS = ("\udcff\udcfe", "x" * 5000, "a\nb", "\x1b[2J", "-", "~", "{}", "%s%n")


def bad_values(option):
    """Texts that are no value of the option, on the command line or in YAML."""
    if option.choices:
        yield from ("no-such-choice", "", "nan", "0")
    elif option.kind is bool:
        yield from ("maybe", "2", "", "nan")
    elif option.kind is str:
        yield from [""] * option.filled
    else:
        yield from NO_NUMBERS
        yield from ["1.5", str(2**70), str(-(2**70))] * (option.kind is int)
        step = 1 if option.kind is int else 0.5
        if option.low is not None:
            yield str(option.low - step)
        if option.high is not None:
            yield str(option.high * 1.001 + step if option.kind is float else option.high + 1)


def bad_settings(option):
    """Values after `--set key=` that are refused."""
    yield from ("[1, 2]",) if option.none else ("[1, 2]", "null")
    if option.kind is str:
        yield from ("5", ".nan", "true", "x" * 5000, '"a\\nb"')
        yield from ("no-such-choice",) if option.choices else ()
    elif option.kind is bool:
        yield from ("maybe", "2", ".nan")
    else:
        yield from (".nan", ".inf", "-.inf", "true", "2026-13-45")
        yield from (text for text in bad_values(option) if text not in ("", "1_0"))  # 10 in YAML


def refusal(capsys, *arguments):
    """The one line with which a command refuses its arguments, without the program's name."""
    status = cli.run_command_line(list(arguments))
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert status == 2 and len(lines) == 1, (arguments, status, captured)
    assert len(lines[0]) < 1500
    line = lines[0].removeprefix("bigbird-ja: ")
    if "--json" in arguments:
        assert json.loads(captured.out) == {"reason": "bad_input", "error": line}
    else:
        assert not captured.out
    return line


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_no_flag_takes_a_bad_value(command, capsys):
    for flag in flags_of(command):
        if flag.name == "help":
            continue
        option, words = declared(flag), enough(command, flag.name)
        for value in bad_values(option):
            if not (value == "" and option.commas):  # no values at all
                printed = refusal(capsys, command, *words, f"--{flag.name}={value}")
                assert printed.startswith(f"--{flag.name} "), printed
        if option.kind is str and not (option.choices or option.needs or option.excludes):
            for value in ODD_TEXTS:
                parse(command, *words, f"--{flag.name}={value}")


@pytest.mark.parametrize("key", OPTIONS)
def test_no_setting_takes_a_bad_value(key, capsys):
    for value in bad_settings(OPTIONS[key]):
        assert key in refusal(capsys, "config", f"--set={key}={value}")


@pytest.mark.parametrize("value", NO_YAML, ids=lambda value: value[:9])
def test_no_setting_takes_what_is_no_plain_value(value, capsys):
    for key in ("model.num_layers", "tpu.name"):
        assert key in refusal(capsys, "config", f"--set={key}={value}")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_what_no_command_takes(command, capsys):
    for words in (["stray", "words"], ["--json=maybe"], ["--no_such_flag=1", "--json"]):
        refusal(capsys, command, *enough(command), *words)
    assert "unknown flag --flagfile" in refusal(capsys, command, "--flagfile=x")
    if not getattr(cli.load_command(command), "SETTINGS", ()):
        assert "unknown flag --config" in refusal(capsys, command, "--config=base-4096")


@pytest.mark.parametrize(
    "text", ["", "=", "model", "model.num_layers", "model.=1", ".x=1", "a.b.c=1", "model=1"]
)
def test_no_setting_is_called_that(text, capsys):
    refusal(capsys, "config", f"--set={text}")
