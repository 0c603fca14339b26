"""Flags as they are declared: types, ranges, what is required, what goes with what, their help."""

import types

import pytest

from bigbird_ja import cli
from bigbird_ja.cli import command_flags, command_help
from bigbird_ja.cli.config import resolve
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS


def flags_of(command):
    return command_flags.own_flags(command_flags.flags_of(cli.load_command(command)))


def enough(command, *left_out):
    """A value for each required flag."""
    return [
        f"--{flag.name}=x"
        for flag in flags_of(command)
        if command_flags.declared(flag).required and flag.name not in left_out
    ]


def parse(command, *arguments):
    return command_flags.parse(cli.load_command(command), command, arguments)


def refusal(command, *arguments):
    with pytest.raises(BadInput) as error:
        resolve(parse(command, *arguments))
    assert "\n" not in str(error.value)
    return str(error.value)


ALL = [
    pytest.param(command, flag, id=f"{command}-{flag.name}")
    for command in cli.COMMANDS
    for flag in flags_of(command)
]


@pytest.mark.parametrize(("command", "flag"), ALL)
def test_every_flag_is_declared_whole(command, flag):
    option = command_flags.declared(flag)
    assert option.meaning.endswith("."), "a sentence"
    if option.kind in (int, float):
        assert option.allowed, "a range"
    if option.setting:
        assert flag.default is None, "the setting has the default"
        assert command_help.default_text(flag) not in ("none", "")
    others = (option.needs, *option.excludes, option.unless)
    known = {"", *(known.name for known in flags_of(command))}
    assert {name.partition("=")[0] for name in others} <= known


@pytest.mark.parametrize(
    ("command", "flag"), [case for case in ALL if command_flags.declared(case.values[1]).required]
)
def test_a_required_flag_is_marked_and_demanded(command, flag):
    assert f"--{flag.name} is needed" in refusal(command, *enough(command, flag.name))
    text = command_help.command_help(cli.load_command(command), command)
    entry = " ".join(text.partition(f"\n  --{flag.name} ")[2].split("\n  --")[0].split())
    assert "(required" in entry


@pytest.mark.parametrize(
    ("command", "flag"), [case for case in ALL if command_flags.declared(case.values[1]).needs]
)
def test_a_flag_that_needs_another_is_refused_alone(command, flag):
    option = command_flags.declared(flag)
    value = option.choices[0] if option.choices else option.high or "x"
    arguments = [*enough(command), f"--{flag.name}={'true' if option.kind is bool else value}"]
    name, equals, needed = option.needs.partition("=")
    if equals:  # the default of the other one may be what is needed
        others = command_flags.declared(parse(command, *enough(command))[name]).choices
        arguments.append(f"--{name}={next(other for other in others if other != needed)}")
    wanted = f"--{flag.name} has no effect without --{option.needs.replace('=', ' ')}"
    assert wanted in refusal(command, *arguments)


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        ("training.eval_every_steps=5", "--mode train_and_eval"),
        ("training.eval_max_batches=5", "--mode train_and_eval"),
        ("tpu.name=x", "--use_tpu"),
    ],
)
def test_a_setting_that_needs_a_flag_is_refused_without_it_and_where_there_is_none(setting, flag):
    arguments = [*enough("pretrain"), f"--set={setting}"]
    assert f"no effect without {flag}" in refusal("pretrain", *arguments)
    resolve(parse("pretrain", *arguments, *flag.split()))
    launched = ("--dry_run", "--config=tiny-cpu", "--max_cost=5", f"--set={setting}")
    expected = f"no effect without {flag}" if "--mode" in flag else "no effect in this command"
    assert f"--set {setting.partition('=')[0]} has {expected}" in refusal("launch", *launched)


def test_what_commands_use_are_settings():
    used = {use for name in cli.COMMANDS for use in getattr(cli.load_command(name), "SETTINGS", ())}
    assert used and used <= {*OPTIONS}


def test_each_setting_of_making_has_a_flag_of_its_own():
    for command, section in (("tokenize", "tokenize"), ("make-data", "make_data")):
        flags = {command_flags.declared(flag).setting for flag in flags_of(command)}
        assert {key for key, option in OPTIONS.items() if option.section == section} <= flags


def test_the_last_of_file_set_and_flag_wins(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("training: {num_train_steps: 5, warmup_steps: 1}\nmodel: {num_layers: 2}\n")
    sets = ["--set=training.num_train_steps=6", "--set=model.num_layers=4"]
    arguments = [f"--config={path}", "--num_train_steps=7", *sets, "--set=model.num_layers=3"]
    config, overrides = resolve(parse("plan", *arguments), config_name=str(path))
    assert (config.training.num_train_steps, config.training.warmup_steps) == (7, 1)
    assert config.model.num_layers == 3
    assert overrides[-1].source == "--num_train_steps"
    args = parse("pretrain", *enough("pretrain"), "--use_tpu", "--tpu_name=mine")
    assert resolve(args)[1][-1].source == "--tpu_name"


def test_unknown_flags_name_near_ones_by_letters_and_meaning():
    assert "'--num_train_steps'" in refusal("pretrain", "--num_train_step=3")
    assert "--set training.global_batch_size=..." in refusal("plan", "--batch_size=3")
    assert "--set" not in refusal("report", "--batch_size=3")


def test_hyphens_stand_for_underscores_in_names_alone():
    args = parse("make-data", *enough("make-data"), "--seq-length=64", "--no-nsp")
    assert args.seq_length == 64 and args.nsp is False
    args = parse("fill-mask", *enough("fill-mask", "text"), "--top-k", "3", "--text=a-b")
    assert (args.top_k, args.text) == (3, "a-b")
    assert parse("fill-mask", *enough("fill-mask"), "--text", "--a-b").text == "--a-b"


def test_stray_words_are_refused_but_for_the_one_that_a_command_takes():
    assert parse("config", "tiny-cpu", "--set=model.num_layers=3").config == "tiny-cpu"
    for words in (["plan", "x"], ["config", "x", "--config=y"]):
        assert "unexpected argument" in refusal(*words)
    assert "unexpected argument 'training.lr'" in refusal("config", "tiny-cpu", "training.lr")
    assert parse("down", "base-1", "--project=p").name == "base-1"
    assert parse("status", "base-1", "--bucket=gs://b").name == "base-1"


@pytest.mark.parametrize(
    ("command", "words", "answer"),
    [
        ("pretrain", "--resume", "no flag --resume: run the same command again"),
        ("pretrain", "--use_gpu", "a GPU is used without a flag"),
        ("pretrain", "--epochs=3", "did you mean '--num_train_steps'"),
        ("pretrain", "--lr=1", "learning_rate"),
        ("config", "--set=training.lr=1", "did you mean 'training.learning_rate'?"),
        ("config", "--set=lr=1", "did you mean 'training.learning_rate'?"),
    ],
)
def test_a_flag_that_is_known_from_elsewhere_is_answered(command, words, answer):
    assert answer in refusal(command, *enough(command), words)


def test_a_stray_word_names_the_flag_that_it_is_meant_for():
    assert "did you mean --input x.txt?" in refusal("tokenize", "x.txt")
    by_shell = refusal("tokenize", "--output_prefix=x", "--input", "a.txt", "b.txt", "c.txt")
    assert "quote a pattern: --input 'FOLDER/*', or repeat --input" in by_shell


def test_all_that_is_missing_is_named_at_once():
    assert "--data_dir, --model_dir are needed: see" in refusal("pretrain")
    names = "--name, --project, --bucket, --data_dir are needed (or --dry_run):"
    assert names in refusal("launch")


def test_help_shows_what_is_required_first():
    text = " ".join(command_help.command_help(cli.load_command("pretrain"), "pretrain").split())
    headings = ["Required:", "Flags:", "Settings:", "In most commands:"]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)


def test_help_shows_range_unit_and_what_a_default_stands_for():
    def define(flags):
        flags.integer("count", 3, "How many.", unit="pieces", low=1, high=9)
        flags.number("share", None, "Which share.", low=0.1, high=1, none="by machine")
        flags.setting("training.num_train_steps", "steps")
        flags.path("many", "Paths.", many=True)

    tpu = tuple(key for key in OPTIONS if key.startswith("tpu."))
    command = types.SimpleNamespace(define_flags=define, EXAMPLE="x", SETTINGS=tpu)
    text = " ".join(command_help.command_help(command, "fake").split())
    assert "--count INT How many. [pieces, 1 to 9] (default: 3)" in text
    assert "--share FLOAT Which share. [0.1 to 1] (default: by machine)" in text
    assert "sets training.num_train_steps] (default: 1400000)" in text
    assert "--many PATH Paths. [repeatable] (default: none)" in text
    assert "Used here: tpu.*." in text
