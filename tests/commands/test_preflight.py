"""`preflight` of a tiny step, with the real compiler."""

import functools
import json
import os
import re
import sys

import pytest

import bigbird_ja
from bigbird_ja.accelerators import environment
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate, figures
from bigbird_ja.preflight.results import StepResult, load_results
from bigbird_ja.storage.ownership import MANIFEST_NAME
from testkit.configs import count_parameters, fitted, with_data
from tests.commands.test_plan import ENCODER
from tests.preflight import SHORTAGES, small_steps

SIZES = ("num_layers=1", "hidden_size=64", "num_attention_heads=1", "intermediate_size=128")
MADE = ("seq_length=128", "max_predictions_per_seq=20")
SETTINGS = [f"model.{size}" for size in SIZES] + [f"make_data.{size}" for size in MADE]
SETTINGS += ["tokenize.vocab_size=512", "training.global_batch_size=8"]
TINY = [f"--set={setting}" for setting in SETTINGS]
_KEYS = (
    "chip fits estimated_cycles priced_cycles step_ms temp_bytes argument_bytes hbm_peak_bytes"
    " hbm_limit_bytes flops model_flops hbm_traffic_bytes mfu tokens_per_second_per_core"
    " unestimated_ops top_ops"
)
KEYS = set(_KEYS.split())


@pytest.fixture
def preflight(run):
    """Return a function that runs `preflight --json` of a tiny step with the given flags."""
    return functools.partial(run, "preflight", "--json", *TINY)


def test_figures_and_files(preflight, tmp_path):
    output, dump = tmp_path / "o.json", tmp_path / "hlo"
    ended = preflight("--chip=v3", f"--output={output}", f"--dump_hlo={dump}")
    assert ended.status == 0
    (chip,) = ended.json["chips"]
    assert chip.keys() >= KEYS
    assert chip["fits"] is True
    assert 0 < chip["estimated_cycles"] <= chip["priced_cycles"]
    low, high = chip["step_ms_range"]
    assert low < chip["step_ms"] < high and chip["basis"] in ended.stderr
    assert len(re.findall("(?m)^  time: ", ended.stderr)) == 1
    assert chip["hbm_peak_bytes"] == (
        chip["temp_bytes"] + chip["argument_bytes"] + chip["output_bytes"] - chip["alias_bytes"]
    )
    # Weights and optimizer slots are updated in place, and other outputs are small.
    assert chip["alias_bytes"] > 0.9 * chip["output_bytes"]
    assert sum(chip["by_kind"].values()) == pytest.approx(chip["priced_cycles"], rel=0.01)
    assert chip["mfu"] == pytest.approx(
        chip["model_flops"] / (chip["step_ms"] / 1e3 * 61.5e12), rel=1e-4
    )
    (kept,) = load_results(str(output)).chips
    assert kept.step_ms == chip["step_ms"]
    assert sorted(os.listdir(dump)) == [
        MANIFEST_NAME,
        *(f"step-batch1.v3.{n}" for n in ("gradients.hlo.pb", "optimized.hlo", "update.hlo.pb")),
    ]
    for messages in ("fits", "MFU", "nothing was timed on a TPU", "layer_*"):
        assert messages in ended.stderr


def test_slice_is_compiled_with_its_collectives(preflight):
    ended = preflight("--topology=v5e:2x2", "--set=tpu.num_cores=4")
    assert (ended.status, ended.json["chips"]) == (0, [])
    (results,) = ended.json["topologies"]
    assert results.keys() >= {*KEYS, *figures.CODE_KEYS, "collectives", "collective_link_ms"}
    assert (results["topology"], results["chip"], results["devices"]) == ("v5e:2x2", "v5e", 4)
    assert results["batch_per_core"] == 2  # The global batch of 8 is divided by 4 devices.
    if small_steps.lists_code():
        assert 0 < results["code_cycles"] < results["priced_cycles"]
        # The coverage is low, since scatters have no counted cycles and are a large part of this
        # small step.
        assert 0.5 < results["code_coverage"] <= 1
        assert "by machine code" in ended.stderr
    config = fitted(None, SETTINGS)
    parameter_bytes = 4 * count_parameters(*with_data(config))
    # The all-reduced arrays are padded.
    assert parameter_bytes < results["collective_bytes"] < 2 * parameter_bytes
    assert 0 < results["collective_cycles"] < results["priced_cycles"]
    versions = ended.json["versions"]
    assert f"Compiled with {environment.describe(versions)}." in ended.stderr
    is_rented = environment.COMPILER.items() <= versions.items()
    assert ("but machines of `launch` use" in ended.stderr) != is_rented
    for messages in ("v5e:2x2, 4 devices", "tokens/s together", "on the links"):
        assert messages in ended.stderr


def test_a_step_that_does_not_fit_names_its_buffers(preflight, monkeypatch):
    result = {"error": SHORTAGES["detailed"]}
    write = f"json.dump({result}, open(sys.argv[-1] + '/result.json', 'w'))"
    monkeypatch.setattr(compile_lib, "CHILD", (sys.executable, "-c", f"import json, sys; {write}"))
    _check_that_it_does_not_fit(ended := preflight("--chip=v2"))
    (chip,) = ended.json["chips"]
    assert "/" in chip["largest_buffers"][0]["op"]
    assert chip["largest_buffers"][0]["op"] in ended.stderr


@pytest.mark.slow
def test_the_real_compiler_refuses_a_step_that_does_not_fit(preflight):
    _check_that_it_does_not_fit(preflight("--chip=v2", "--batch_per_core=60000"))


def _check_that_it_does_not_fit(ended):
    assert ended.status == 0
    (chip,) = ended.json["chips"]
    assert chip.keys() >= KEYS
    assert chip["fits"] is False
    assert chip["priced_cycles"] is None and chip["hbm_peak_bytes"] > chip["hbm_limit_bytes"]
    assert "does not fit" in ended.stderr


def test_the_sizes_of_an_encoder_replace_those_of_the_config(monkeypatch, tmp_path):
    """Read the sizes of an encoder from its config.json, as `plan --init_from` does."""
    (tmp_path / "config.json").write_text(json.dumps(ENCODER))
    seen = []

    def examine(config, data, target, batch, *_, **__):
        seen.append(config.model)
        shape = {"seq_length": data.seq_length, "batch_per_core": batch}
        return StepResult(chip=target.chip.name, fits=False, **shape)

    monkeypatch.setattr(estimate, "examine", examine)
    result = bigbird_ja.preflight(config="continue-8192", init_from=str(tmp_path), chips=["v5e"])
    assert [step.chip for step in result.chips] == ["v5e"] and not result.topologies
    assert (seen[0].hidden_size, seen[0].num_layers) == (384, 12)
