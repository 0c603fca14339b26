"""Declarations of flags: types, ranges, required flags, and flags that need other flags.

Every flag and setting refuses every kind of invalid value with a message of one line. The values
are generated from the declarations, so that a new flag or setting needs no new test.
"""

import json

import pytest

from bigbird_ja import cli
from bigbird_ja.cli import command_flags, command_help
from bigbird_ja.cli.command_flags import declared
from bigbird_ja.cli.spelling import spell_flags
from bigbird_ja.errors import BadInput
from bigbird_ja.settings.variants import OPTIONS
from testkit.configs import resolve_flags


def collect_flags(command):
    return command_flags.own_flags(command_flags.collect_flags(cli.load_command(command)))


def enough(command, *left_out):
    """Return arguments with a value for each required flag, except those in `left_out`."""
    return [
        f"--{flag.name}=x"
        for flag in collect_flags(command)
        if command_flags.declared(flag).required and flag.name not in left_out
    ]


def parse(command, *arguments):
    return command_flags.parse(cli.load_command(command), command, arguments)


def refusal(command, *arguments):
    with pytest.raises(BadInput) as error:
        resolve_flags(parse(command, *arguments))
    assert "\n" not in str(error.value)
    return spell_flags(str(error.value), {flag.name for flag in collect_flags(command)})


ALL = [
    pytest.param(command, flag, id=f"{command}-{flag.name}")
    for command in cli.COMMANDS
    for flag in collect_flags(command)
]


@pytest.mark.parametrize(("command", "flag"), ALL)
def test_every_flag_is_fully_declared(command, flag):
    option = command_flags.declared(flag)
    assert option.meaning.endswith("."), "a sentence"
    if option.kind in (int, float):
        assert option.allowed, "a range"
    if option.setting:
        assert flag.default is None, "the setting has the default"
        assert command_help.format_default(flag) not in ("none", "")
    others = (option.needs, *option.excludes, option.unless)
    known = {"", *(known.name for known in collect_flags(command))}
    assert {name.partition("=")[0] for name in others} <= known


@pytest.mark.parametrize(
    ("command", "flag"), [case for case in ALL if command_flags.declared(case.values[1]).required]
)
def test_a_required_flag_is_marked_and_required(command, flag):
    assert f"--{flag.name} is required" in refusal(command, *enough(command, flag.name))
    text = command_help.format_help(cli.load_command(command), command)
    entry = " ".join(text.partition(f"\n  --{flag.name} ")[2].split("\n  --")[0].split())
    assert "(required" in entry


@pytest.mark.parametrize(
    ("command", "flag"), [case for case in ALL if command_flags.declared(case.values[1]).needs]
)
def test_a_flag_that_needs_another_is_refused_without_it(command, flag):
    option = command_flags.declared(flag)
    value = option.choices[0] if option.choices else option.span[1] if option.span else "x"
    arguments = [*enough(command), f"--{flag.name}={'true' if option.kind is bool else value}"]
    name, equals, needed = option.needs.partition("=")
    # If the flag needs `name=value`, set the flag `name` to a different value. Its default may be
    # `value`, which would satisfy the need.
    if equals:
        others = command_flags.declared(parse(command, *enough(command))[name]).choices
        arguments.append(f"--{name}={next(other for other in others if other != needed)}")
    wanted = f"--{flag.name} has no effect without --{option.needs.replace('=', ' ')}"
    assert wanted in refusal(command, *arguments)


def test_commands_use_declared_settings():
    used = {use for name in cli.COMMANDS for use in getattr(cli.load_command(name), "SETTINGS", ())}
    assert used and used <= {*OPTIONS}


def test_each_setting_of_making_has_a_flag_of_its_own():
    for command, section in (("tokenize", "tokenize"), ("make-data", "make_data")):
        flags = {command_flags.declared(flag).setting for flag in collect_flags(command)}
        assert {key for key, option in OPTIONS.items() if option.section == section} <= flags


def test_the_last_of_file_set_and_flag_wins(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("training: {num_train_steps: 5, warmup_steps: 1}\nmodel: {num_layers: 2}\n")
    sets = ["--set=training.num_train_steps=6", "--set=model.num_layers=4"]
    arguments = [f"--config={path}", "--num_train_steps=7", *sets, "--set=model.num_layers=3"]
    config, overrides = resolve_flags(parse("plan", *arguments))
    assert (config.training.num_train_steps, config.training.warmup_steps) == (7, 1)
    assert config.model.num_layers == 3
    assert overrides[-1].source == "`num_train_steps`"
    args = parse("pretrain", *enough("pretrain"), "--use_tpu", "--tpu_name=mine")
    assert resolve_flags(args)[1][-1].source == "`tpu_name`"


def test_unknown_flags_name_near_ones_by_letters_and_meaning():
    assert "'--num_train_steps'" in refusal("pretrain", "--num_train_step=3")
    assert "--set training.global_batch_size=..." in refusal("plan", "--batch_size=3")
    assert "--set" not in refusal("report", "--batch_size=3")


def test_hyphens_stand_for_underscores_in_names_only():
    args = parse("make-data", *enough("make-data"), "--seq-length=64", "--no-nsp")
    assert args.seq_length == 64 and args.nsp is False
    args = parse("fill-mask", *enough("fill-mask", "text"), "--top-k", "3", "--text=a-b")
    assert (args.top_k, args.text) == (3, ["a-b"])
    assert parse("fill-mask", *enough("fill-mask"), "--text", "--a-b").text == ["--a-b"]


def test_only_a_positional_argument_is_accepted():
    assert parse("config", "tiny-cpu", "--set=model.num_layers=3").config == "tiny-cpu"
    for words in (["plan", "x"], ["config", "x", "--config=y"]):
        assert "unexpected argument" in refusal(*words)
    assert "unexpected argument 'training.lr'" in refusal("config", "tiny-cpu", "training.lr")
    assert parse("down", "base-1", "--project=p").name == "base-1"
    assert parse("status", "base-1", "--bucket=gs://b").name == "base-1"


@pytest.mark.parametrize(
    ("command", "words", "answer"),
    [
        ("pretrain", "--resume", "no flag --resume: rerun the same command"),
        ("pretrain", "--use_gpu", "a GPU is used without a flag"),
        ("pretrain", "--epochs=3", "did you mean '--num_train_steps'"),
        ("pretrain", "--lr=1", "learning_rate"),
        ("config", "--set=training.lr=1", "did you mean 'training.learning_rate'?"),
        ("config", "--set=lr=1", "did you mean 'training.learning_rate'?"),
        ("config", "--set=training.batch_size=1", "did you mean 'training.global_batch_size'"),
        ("config", "--set=num_layer=1", "did you mean 'model.num_layers'"),
        ("config", "--set=training.save_every_step=1", "did you mean 'checkpoints.save_every_step"),
    ],
)
def test_flags_of_other_trainers_are_answered(command, words, answer):
    assert answer in refusal(command, *enough(command), words)


def test_a_stray_word_names_the_flag_that_it_is_meant_for():
    assert "did you mean --input x.txt?" in refusal("tokenize", "x.txt")
    by_shell = refusal("tokenize", "--output_prefix=x", "--input", "a.txt", "b.txt", "c.txt")
    assert "quote a pattern: --input 'FOLDER/*', or repeat --input" in by_shell


def test_all_missing_flags_are_named_at_once():
    assert "--data_dir, --model_dir are required: see" in refusal("pretrain")
    names = "--name, --project, --bucket, --data_dir are required"
    assert f"--config, {names}: see" in refusal("launch")
    assert f"{names} (or --dry_run):" in refusal("launch", "--config=tiny-cpu")


NO_NUMBERS = ("x", "", "nan", "inf", "-inf", "1e999", "1e30", "-1e30", "9" * 5000)


NO_NUMBERS += ("0x", "１２", "1_0", "--")


NO_YAML = ("[1, 2]", "{a: 1}", "!!python/object:os.system x", "[", "&a [*a, *a]", "[" * 10_000)


# Texts that a parser may accept, but that no file system or service can use.
ODD_TEXTS = ("\udcff\udcfe", "x" * 5000, "a\nb", "\x1b[2J", "-", "~", "{}", "%s%n")


def bad_values(option):
    """Yield invalid texts for the option, on the command line or in YAML."""
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
        low, high = option.span
        yield str(low - step)
        yield str(high * 1.001 + step if option.kind is float else high + 1)


def bad_settings(option):
    """Yield values that `--set KEY=VALUE` refuses for the option."""
    yield from ("[1, 2]",) if option.none else ("[1, 2]", "null")
    if option.kind is str:
        yield from ("5", ".nan", "true", "x" * 5000, '"a\\nb"')
        yield from ("no-such-choice",) if option.choices else ()
    elif option.kind is bool:
        yield from ("maybe", "2", ".nan")
    else:
        yield from (".nan", ".inf", "-.inf", "true", "2026-13-45")
        # YAML reads "1_0" as 10, and "" as null.
        yield from (text for text in bad_values(option) if text not in ("", "1_0"))


def printed_refusal(capsys, *arguments):
    """Run a command that refuses its arguments, and return the error line without its prefix."""
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
    for flag in collect_flags(command):
        if flag.name == "help":
            continue
        option, words = declared(flag), enough(command, flag.name)
        for value in bad_values(option):
            # For a comma-separated option, "" is a valid empty list.
            if not (value == "" and option.commas):
                printed = printed_refusal(capsys, command, *words, f"--{flag.name}={value}")
                assert printed.startswith(f"--{flag.name} "), printed
        if option.kind is str and not (
            option.choices or option.needs or option.excludes or option.setting
        ):
            for value in ODD_TEXTS:
                parse(command, *words, f"--{flag.name}={value}")


@pytest.mark.parametrize("key", OPTIONS)
def test_no_setting_takes_a_bad_value(key, capsys):
    for value in bad_settings(OPTIONS[key]):
        assert key in printed_refusal(capsys, "config", f"--set={key}={value}")


@pytest.mark.parametrize("value", NO_YAML, ids=lambda value: value[:9])
def test_no_setting_takes_a_yaml_structure(value, capsys):
    for key in ("model.num_layers", "tpu.name"):
        assert key in printed_refusal(capsys, "config", f"--set={key}={value}")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_no_command_takes_unknown_arguments(command, capsys):
    for words in (["stray", "words"], ["--json=maybe"], ["--no_such_flag=1", "--json"]):
        printed_refusal(capsys, command, *enough(command), *words)
    assert "unknown flag --flagfile" in printed_refusal(capsys, command, "--flagfile=x")
    if not getattr(cli.load_command(command), "SETTINGS", ()):
        assert "unknown flag --config" in printed_refusal(capsys, command, "--config=base-4096")


@pytest.mark.parametrize(
    "text", ["", "=", "model", "model.num_layers", "model.=1", ".x=1", "a.b.c=1", "model=1"]
)
def test_an_invalid_name_of_a_setting_is_refused(text, capsys):
    printed_refusal(capsys, "config", f"--set={text}")
