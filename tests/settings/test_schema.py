"""Declarations of the settings, and the commands that use them."""

import sys

import pytest

from bigbird_ja import cli
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate
from bigbird_ja.settings.data_facts import DATA_KEYS, count_predictions
from bigbird_ja.settings.values import flatten, get_accepted_changes
from bigbird_ja.settings.variants import OPTIONS, VARIANTS
from testkit.configs import resolve_config


@pytest.mark.parametrize("key", OPTIONS)
def test_every_setting_is_fully_declared(key):
    option = OPTIONS[key]
    assert option.meaning.endswith(".") and option.kind in (int, float, bool, str)
    if option.kind in (int, float):
        assert option.allowed, "a range"
    for bound in option.span or ():
        assert option.read(bound) == bound
    if option.default is None:
        assert option.none, "the meaning of None"
    else:
        assert option.read(option.default, "default") == option.default
    for other, values in option.only_with.items():
        assert set(values) < set(OPTIONS[other].choices)


def test_the_preset_of_the_original_run_has_its_settings():
    config, _ = resolve_config("original-2021")
    assert count_predictions(config.make_data) == 600
    values = flatten(config).items()
    assert {key: value for key, value in values if value != OPTIONS[key].default} == {
        "make_data.masking": "static",
        "make_data.mask_unit": "subword",
        "make_data.nsp": True,
        "make_data.max_predictions_per_seq": 600,
        "model.random_pattern": "independent",
        "training.dtype": "float32",
    }


def test_data_model_seed_and_optimizer_of_a_run_are_fixed():
    sections = {key.partition(".")[0] for key in OPTIONS if get_accepted_changes(key) == "logged"}
    assert sections == {"training"}
    kept = ("training.seed", "training.optimizer", "model.num_layers", "make_data.seq_length")
    assert all(get_accepted_changes(key) == "fixed" for key in kept)


SHAPES = ("--set=model.architecture=bigbird", "--set=model.architecture=modernbert")


# Code that checks, copies, shows or compares configs reads all settings, so its reads do not count.
# Reads by `list_config_warnings` count, since a setting with a warning has an effect.
HANDLING = ("bigbird_ja.settings.resolve", "bigbird_ja.settings.variants")


HANDLING_FUNCTIONS = {"replace_settings", "flatten", "validate_config", "validate_on_data"}


@pytest.fixture
def read(monkeypatch):
    """Return a set to which every setting that the code reads is added."""
    result = set()

    def watch(section, kind):
        def reading(self, name):
            frame = sys._getframe(1)
            module, function = frame.f_globals["__name__"], frame.f_code.co_name
            is_handling = function in HANDLING_FUNCTIONS or module in HANDLING
            if f"{section}.{name}" in OPTIONS and not is_handling:
                result.add(f"{section}.{name}")
            return object.__getattribute__(self, name)

        monkeypatch.setattr(kind, "__getattribute__", reading, raising=False)

    for section, variants in VARIANTS.items():
        for kind in variants:
            watch(section, kind)
    return result


def used(command):
    """Return the settings that a command accepts, without those of the data set."""
    return of_runs(set(cli.load_command(command).SETTINGS))


def of_runs(keys):
    """Return the keys without those that a data set determines."""
    return {key for key in keys - {*DATA_KEYS} if not key.startswith("make_data.")}


def test_plan_reads_the_settings_that_it_accepts(read):
    words = ["--set=training.masked_lm_prob=0.2", "--set=training.final_masked_lm_prob=0.1"]
    for architecture in SHAPES:
        assert cli.run_command_line(["plan", "--config=base-4096", *words, architecture]) == 0
    assert of_runs(read) == used("plan")


def test_preflight_reads_the_settings_that_it_accepts(read, monkeypatch):
    pytest.importorskip("jax")
    full = compile_lib.Shortage(0, [])
    # Do not compile, since the compiler reads no settings.
    monkeypatch.setattr(estimate, "compile_for", lambda *_: full)
    monkeypatch.setattr(compile_lib, "read_versions", lambda: {})  # libtpu may be missing.
    words = ["--set=training.masked_lm_prob=0.2", "--set=training.schedule=wsd", "--chip=v3"]
    # ModernBERT needs two layers, since its second layer is local.
    layers = ("--set=model.num_layers=1", "--set=model.num_layers=2")
    for shape in zip(SHAPES, layers, strict=True):
        assert cli.run_command_line(["preflight", "--config=tiny-cpu", *words, *shape]) == 0
    assert of_runs(read) == used("preflight")
