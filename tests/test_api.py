"""The Python interface: functions with keyword arguments and typed results, imported lazily."""

import dataclasses
import inspect
import subprocess
import sys
import typing

import pytest

import bigbird_ja
from bigbird_ja import errors
from bigbird_ja.cli import COMMANDS, command_flags, load_command

SHELL = {"json", "help", "config", "set"}
# Flags of commands that the Python functions lack. `yes` answers a question on the terminal,
# `input` is a file of texts, and `examples` is the number of printed examples.
ONLY_FLAGS = {"down": {"yes"}, "fill_mask": {"input"}, "check_data": {"examples"}}


@pytest.mark.parametrize("name", bigbird_ja.FUNCTIONS)
def test_a_function_is_declared_lazily_and_typed(name):
    function = getattr(bigbird_ja, name)
    assert name in bigbird_ja.__all__ and name in dir(bigbird_ja)
    signature = inspect.signature(function)
    assert {p.kind for p in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    hints = typing.get_type_hints(function)
    assert hints.keys() == {*signature.parameters, "return"}
    for result in typing.get_args(hints["return"]) or (hints["return"],):
        assert dataclasses.is_dataclass(result) and result.__dataclass_params__.frozen
    for part in ("Args:", "Raises:"):
        assert part in inspect.getdoc(function)


@pytest.mark.parametrize("name", bigbird_ja.FUNCTIONS)
def test_every_flag_is_a_parameter(name):
    command = load_command(name.replace("_", "-"))
    flags = {flag.name for flag in command_flags.own_flags(command_flags.collect_flags(command))}
    given = inspect.signature(getattr(bigbird_ja, name)).parameters
    parameters = {*given, *(parameter.removesuffix("s") for parameter in given)}
    missing = flags - SHELL - parameters
    assert missing <= ONLY_FLAGS.get(name, set())
    if "set" in flags:
        assert {"config", "overrides"} <= {*given}


def test_every_command_is_a_function():
    assert {name.replace("_", "-") for name in bigbird_ja.FUNCTIONS} == {*COMMANDS}


def test_import_is_fast_and_takes_no_library():
    program = (
        "import sys, time\nbegan = time.perf_counter()\nimport bigbird_ja\n"
        "seconds = time.perf_counter() - began\n"
        "heavy = {'tensorflow', 'numpy', 'jax', 'msgspec', 'absl', 'yaml'} & {*sys.modules}\n"
        "assert not heavy, heavy\nassert seconds < 0.2, seconds\n"
        "bigbird_ja.config\nassert not {'tensorflow', 'numpy', 'jax', 'absl'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_function_is_not_hidden_by_the_subpackage_of_its_name():
    import bigbird_ja.report.charts

    assert callable(bigbird_ja.report)
    with pytest.raises(AttributeError, match="no attribute 'reports'"):
        bigbird_ja.reports  # noqa: B018


def test_one_hierarchy_of_errors():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, Exception)]
    assert all(issubclass(kind, errors.CommandError) for kind in kinds)
    assert issubclass(errors.BadInput, ValueError)
    assert errors.BadInput.status == 2 and errors.Interrupted.status == 75


def test_config_explains_the_settings_with_their_source():
    result = bigbird_ja.config(config="tiny-cpu", overrides={"training.learning_rate": 3e-4})
    rate = result.settings["training.learning_rate"]
    assert (rate.value, rate.source) == (3e-4, "`overrides`")
    assert result.settings["model.num_layers"].source == "preset tiny-cpu"
    with pytest.raises(errors.BadInput, match=r"`overrides`: unknown setting .training\.lr"):
        bigbird_ja.config(overrides={"training.lr": 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda: bigbird_ja.tokenize(inputs="a.jsonl", output_prefix="ja"),
        lambda: bigbird_ja.make_data(inputs="a.jsonl", tokenizer="ja.model", output_dir="data"),
        lambda: bigbird_ja.trim(encoder="e5", inputs="a.jsonl", output_dir="out"),
        lambda: bigbird_ja.fill_mask(model_dir="run", texts="[MASK]"),
        lambda: bigbird_ja.report(model_dirs="run", output="report.html"),
    ],
)
def test_one_text_in_place_of_a_list_is_refused(call):
    with pytest.raises(errors.BadInput, match="must be a list"):
        call()
