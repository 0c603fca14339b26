"""Output of the command `plan`, as text and as JSON."""

import functools
import json
import re

import pytest

from bigbird_ja.accelerators import environment
from tests.launch.support import write_manifest


@pytest.fixture
def plan(run):
    """Return a function that runs `plan --json` with the given flags."""
    return functools.partial(run, "plan", "--json")


def between(low, high):
    return "-".join(f"{end:.0f}" if end >= 20 else f"{end:.1f}" for end in (low, high))


def test_without_data_the_verdict_the_assumption_and_a_table_that_fits_80_columns(plan):
    ended = plan("--config=base-4096")
    assert ended.status == 0
    assert ended.json["tokens_per_step"] == 65_536 and ended.json["steps_per_epoch"] > 1000
    assert "Wiki40b" in ended.json["assumption"] and "Wiki40b" in ended.stderr
    rows = {(row["accelerator"], row["pricing"]): row for row in ended.json["rows"]}
    assert {"v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8", "v7x-8"} <= {one for one, _ in rows}
    assert ended.json["cheapest"] == rows["v5e-8", "spot"]
    free, cheapest = re.split("(?m)^cheapest to rent: ", ended.stderr, maxsplit=1)
    assert free.startswith("free, in sessions of limited length: v5e-8 of Kaggle, ")
    assert cheapest.startswith("v5e-8 spot, ") and "103.5 epochs" in cheapest
    # A machine's line shows intervals of the hours and the cost, for spot and for on-demand.
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("v3-8 ")]
    for pricing in ("spot", "on_demand"):
        low, high = rows["v3-8", pricing]["cost_usd_range"]
        assert low < rows["v3-8", pricing]["cost_usd"] < high
        assert f"  {between(low, high)}  " in f"{line}  "
    assert f"  {between(*rows['v3-8', 'spot']['wall_hours_range'])} h  " in line
    assert [line for line in ended.stderr.splitlines() if len(line) > 79] == []
    price, text = ended.json["cheapest"]["usd_per_hour"], " ".join(ended.stderr.split())
    for rate, hours in ended.json["hours_by_preemptions"].items():
        assert f"{hours:.1f} h ({hours * price:.1f} USD) at {rate}" in text


def test_the_compiler_is_named_with_a_warning_if_rented_machines_have_another(plan, tmp_path):
    ours = environment.describe(environment.COMPILER)
    ended = plan("--config=base-4096")
    assert ended.json["compiler"] == ours and f"compiled with {ours}" in ended.stderr
    assert "warning" not in ended.stderr
    path, versions = tmp_path / "preflight.json", {"jax": "0.10.2", "libtpu": "0.0.52"}
    path.write_text(json.dumps({"chips": [], "versions": versions}), encoding="utf-8")
    ended = plan("--config=base-4096", f"--preflight={path}")
    assert ended.json["compiler"] == "jax 0.10.2, libtpu 0.0.52"
    warning = f"warning: {path}: compiled with jax 0.10.2, libtpu 0.0.52, but machines of `launch`"
    assert warning in ended.stderr


def test_with_data_epochs_and_lengths_are_those_of_the_data(plan, tmp_path):
    data = write_manifest(f"{tmp_path}/data")
    ended = plan("--config=tiny-cpu", f"--data_dir={data}", "--num_train_steps=12")
    assert ended.status == 0
    assert ended.json["assumption"] is None and ended.json["steps_per_epoch"] == 12 / 4
    assert (ended.json["epochs"], ended.json["tokens"]) == (4, 12 * 4 * 512)
    assert " = 4.0 epochs of the data set (3 steps each)" in " ".join(ended.stderr.split())
    ended = plan("--config=base-4096", f"--data_dir={data}")
    said = "make_data.seq_length = 512  (preset base-4096 4096; from the data)"
    assert said in ended.stderr, "no step is of 4,096 tokens"


def test_a_budget_buys_steps_tokens_and_epochs_on_each_machine(plan):
    ended = plan("--config=base-4096", "--max_cost=50")
    best, *others = ended.json["max_cost_buys"]
    assert (best["accelerator"], best["pricing"]) == ("v5e-8", "spot")
    assert best["steps"] == pytest.approx(500_000 * best["share"])
    assert all(best["share"] >= each["share"] for each in others)
    (line,) = re.findall("(?m)^v5e-8 +spot .*%$", ended.stderr)
    assert line.endswith(f"  {best['share']:.0%}")


ENCODER = {
    **{"model_type": "bert", "vocab_size": 250_037, "hidden_size": 384, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "intermediate_size": 1536, "hidden_act": "gelu"},
    "max_position_embeddings": 512,
}


def test_the_encoder_that_is_given_is_priced_without_its_weights(plan, tmp_path):
    """Price a model with the layers, width and vocabulary in the `config.json` of --init_from."""
    folder = tmp_path / "e5"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ENCODER))

    def flops_per_token(*flags):
        rows = plan("--config=continue-8192", "--accelerator_type=v5p-8", *flags).json["rows"]
        return next(1 / row["tokens_per_second"] for row in rows)

    sizes = {**ENCODER, "num_layers": 12}
    sets = [
        f"--set=model.{key}={sizes[key]}"
        for key in ("vocab_size", "hidden_size", "num_layers", "num_attention_heads")
    ]
    sets += ["--set=model.architecture=bigbird", "--set=model.intermediate_size=1536"]
    given = flops_per_token(f"--init_from={folder}")
    assert given == pytest.approx(flops_per_token(*sets))
    assert given < flops_per_token() / 2


def test_a_machine_that_never_ends_is_shown_as_such(plan):
    ended = plan("--config=base-4096", "--accelerator_type=v2-8", "--preemptions_per_hour=99")
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("v2-8 ")]
    assert "  never  " in line and ended.json["cheapest"]["pricing"] == "on_demand"
    assert "launch --accelerator_type v2-8 --pricing on_demand \\\n      --zones" in ended.stderr
