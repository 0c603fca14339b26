"""Flags as they are declared: types, ranges, what is required, what goes with what, their help."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from bigbird_ja.cli import command_flags, main
from bigbird_ja.cli.command_flags import Flags, declared
from bigbird_ja.commands import config as config_command
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS

NO_SETTINGS = (
    "demo", "sample", "check-data", "evaluate", "fill-mask", "report", "export", "status", "down",
)  # fmt: skip


def flags_of(command: str) -> list[Any]:
    return command_flags.own_flags(command_flags.flags_of(main.load_command(command)))


def all_flags() -> Iterator[Any]:
    for command in main.COMMANDS:
        for flag in flags_of(command):
            yield pytest.param(command, flag, id=f"{command}-{flag.name}")


def enough(command: str, *left_out: str) -> list[str]:
    """A value for each required flag."""
    return [
        f"--{flag.name}=x"
        for flag in flags_of(command)
        if declared(flag).required and flag.name not in left_out
    ]


def parse(command: str, *arguments: str) -> Any:
    return command_flags.parse(main.load_command(command), command, arguments)


def refusal(command: str, *arguments: str) -> str:
    with pytest.raises(BadInput) as error:
        parse(command, *arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("command", "flag"), all_flags())
def test_every_flag_is_declared_whole(command: str, flag: Any) -> None:
    about = declared(flag)
    assert about.help.endswith("."), "a sentence"
    if about.kind in (int, float):
        assert about.allowed, "a range"
    if about.setting:
        assert flag.default is None, "the setting has the default"
        assert command_flags.default_text(flag) not in ("none", "")
    for name in (*about.needs, *about.excludes, *about.unless, *about.needs_flag.split()):
        assert not name or name.partition("=")[0] in {known.name for known in flags_of(command)}


@pytest.mark.parametrize(
    ("command", "flag"), [p for p in all_flags() if declared(p.values[1]).required]
)
def test_a_required_flag_is_marked_and_demanded(command: str, flag: Any) -> None:
    assert f"--{flag.name} is needed" in refusal(command, *enough(command, flag.name))
    text = main.command_help(main.load_command(command), command)
    entry = text[text.index(f"  --{flag.name}=") :].split("\n  --")[0]
    assert "(required" in entry


def test_a_dry_run_requires_nothing() -> None:
    parse("launch", "--dry_run")
    assert "or --dry_run" in refusal("launch")


@pytest.mark.parametrize(
    ("command", "flag"), [p for p in all_flags() if declared(p.values[1]).needs]
)
def test_a_flag_that_needs_another_is_refused_alone(command: str, flag: Any) -> None:
    option, needs = declared(flag), declared(flag).needs
    value = {bool: "true", str: option.choices[0] if option.choices else "x"}.get(
        option.kind, str(option.high)
    )
    arguments = [*enough(command), f"--{flag.name}={value}"]
    if needs[0].partition("=")[1]:  # the default of the other one may be what is needed
        name, _, needed = needs[0].partition("=")
        others = declared(parse(command, *enough(command))[name]).choices
        arguments.append(f"--{name}={next(c for c in others if c != needed)}")
    assert f"--{flag.name} has no effect without --{needs[0]}" in refusal(command, *arguments)


def test_flags_that_exclude_each_other() -> None:
    assert "--step and --watch" in refusal("evaluate", *enough("evaluate"), "--step=3", "--watch")
    assert "--epochs and --tokens" in refusal("plan", "--tokens=1e9", "--epochs=3")
    assert "--tokens and --num_train_steps" in refusal(
        "plan", "--tokens=1e9", "--num_train_steps=3"
    )


@pytest.mark.parametrize(
    ("setting", "flag"),
    [("training.eval_every_steps=5", "--mode=train_and_eval"), ("tpu.name=x", "--use_tpu")],
)
def test_settings_that_need_a_flag_are_refused_without_it(setting: str, flag: str) -> None:
    arguments = [*enough("pretrain"), f"--set={setting}"]
    with pytest.raises(BadInput, match=f"no effect without {flag}"):
        command_flags.resolve(parse("pretrain", *arguments))
    command_flags.resolve(parse("pretrain", *arguments, flag))


NEEDY = [key for key, option in OPTIONS.items() if option.needs_flag]


@pytest.mark.parametrize("key", NEEDY)
@pytest.mark.parametrize("command", ["plan", "preflight", "launch"])
def test_a_setting_whose_flag_a_command_does_not_have_is_refused(command: str, key: str) -> None:
    assert OPTIONS[key].needs_flag.partition("=")[0] not in {f.name for f in flags_of(command)}
    value = OPTIONS[key].high or "x"
    words = [*enough(command), f"--set={key}={value}", *["--dry_run"] * (command == "launch")]
    refused = "this command does not use it" if command != "launch" else "no effect in this command"
    with pytest.raises(BadInput, match=f"--set {key}.* {refused}"):
        command_flags.resolve(parse(command, *words))


def test_every_other_command_says_which_settings_it_uses() -> None:
    using = [n for n in main.COMMANDS if getattr(main.load_command(n), "SETTINGS", ())]
    assert set(using) == set(main.COMMANDS) - set(NO_SETTINGS)
    assert set(config_command.COMMANDS) == set(using) - {"config"}
    for name in using:
        for use in main.load_command(name).SETTINGS:
            assert use in OPTIONS or use in {option.section for option in OPTIONS.values()}


def test_each_setting_of_making_has_a_flag_of_its_own() -> None:
    for command, section in (("tokenize", "tokenize"), ("make-data", "make_data")):
        flags = {declared(flag).setting for flag in flags_of(command)}
        assert {key for key, o in OPTIONS.items() if o.section == section} <= flags


def test_a_flag_of_a_setting_sets_it_over_file_and_set(tmp_path: Any) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("training: {num_train_steps: 5, warmup_steps: 1}\n")
    arguments = [f"--config={path}", "--set=training.num_train_steps=6", "--num_train_steps=7"]
    config, overrides = command_flags.resolve(parse("plan", *arguments))
    assert config.training.num_train_steps == 7
    assert overrides[-1].source == "--num_train_steps"
    args = parse("pretrain", *enough("pretrain"), "--use_tpu", "--tpu_name=mine")
    assert command_flags.resolve(args)[1][-1].source == "--tpu_name"


def test_unknown_flags_name_near_ones_by_letters_and_meaning() -> None:
    assert "'--num_train_steps'" in refusal("pretrain", "--num_train_step=3")
    printed = refusal("pretrain", "--batch_size=3")
    assert "--set training.global_batch_size=..." in printed
    assert "--set" not in refusal("report", "--batch_size=3").replace("--help", "")


def test_hyphens_stand_for_underscores_in_names_alone() -> None:
    args = parse("make-data", *enough("make-data"), "--seq-length=64", "--nonsp")
    assert args.seq_length == 64 and args.nsp is False
    args = parse("fill-mask", *enough("fill-mask", "text"), "--top-k", "3", "--text=a-b")
    assert (args.top_k, args.text) == (3, "a-b")


def test_stray_words_are_refused_but_for_the_one_that_a_command_takes() -> None:
    assert "unexpected argument 'stray'" in refusal("plan", "stray")
    assert parse("config", "tiny-cpu", "--set=model.num_layers=3").config == "tiny-cpu"
    assert "unexpected argument" in refusal("config", "tiny-cpu", "base-4096")
    assert "unexpected argument" in refusal("config", "tiny-cpu", "--config=base-4096")


def test_help_shows_range_unit_and_what_a_default_stands_for() -> None:
    def define(flags: Flags) -> None:
        flags.integer("count", 3, "How many.", unit="pieces", low=1, high=9)
        flags.number("share", None, "Which share.", above=0, below=1, none="by machine")
        flags.setting("training.num_train_steps", "steps")
        flags.path("many", "Paths.", many=True)

    command = types.SimpleNamespace(
        define_flags=define, EXAMPLE="x", __doc__="d", SETTINGS=("tpu",)
    )
    text = " ".join(main.command_help(command, "fake").split())
    assert "--count=INT How many. [pieces, 1 to 9] (default: 3)" in text
    assert "--share=FLOAT Which share. [above 0 below 1] (default: by machine)" in text
    assert "sets training.num_train_steps] (default: 1400000)" in text
    assert "--many=STRING Paths. [repeatable] (default: none)" in text
    assert "Of use here: tpu.*." in text
