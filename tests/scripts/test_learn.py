"""The learning bench: its recipes are made of settings, and what it prints follows from losses."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from bigbird_ja.settings.resolve import resolve_config
from scripts import compare, learn

BENCHES = yaml.safe_load(Path(learn.__file__).with_name("recipes.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", BENCHES)
def test_every_recipe_is_made_of_settings_that_there_are(name):
    bench = BENCHES[name]
    for run in learn.runs_of(bench):
        resolve_config(bench["preset"], learn.settings_of(bench, run))
        resolve_config("base-4096", run.recipe["price"])


def test_a_recipe_inherits_from_the_one_that_it_is_compared_with():
    runs = {
        "a": {"sets": ["x=1"]},
        "b": {"sets": ["x={share:0.5}"], "price": ["y=1"], "seeds": 2},
        "c": {"from": "b", "sets": ["z=1"]},
        "d": None,
    }
    made = learn.runs_of({"runs": runs, "steps": 10})
    assert [(run.name, run.seed) for run in made] == [*((n, 0) for n in "abcd"), ("b", 1)]
    assert made[2].recipe["sets"] == ["x={share:0.5}", "z=1"]
    assert made[2].recipe["price"] == ["y=1"] and made[3].recipe["sets"] == []
    assert {run.name for run in learn.runs_of({"runs": runs}, ["c"])} == {"a", "b", "c"}
    assert "x=5" in learn.settings_of({"runs": runs}, made[2])


def test_results_are_taken_where_their_settings_are_the_runs(tmp_path):
    bench = {"preset": "tiny-cpu", "runs": {"a": None}, "steps": 10}
    (run,) = learn.runs_of(bench)
    published = {run.title: {"settings": learn.identity(bench, run), "loss": 2.0}}
    assert learn.kept_result(bench, tmp_path, {}, run) is None
    assert (learn.kept_result(bench, tmp_path, published, run) or {})["loss"] == 2.0
    kept = tmp_path / "runs" / f"{run.folder}.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({**published[run.title], "loss": 1.0}), "utf-8")
    assert (learn.kept_result(bench, tmp_path, published, run) or {})["loss"] == 1.0
    changed = {**bench, "sets": ["model.num_layers=5"]}
    assert learn.kept_result(changed, tmp_path, published, run) is None


def test_results_are_published_for_their_text_alone(tmp_path):
    path, runs = tmp_path / "picture.json", {"a, seed 0": {"loss": 1.0}, "a, seed 1": {"loss": 2.0}}
    assert compare.read_published(path, "one") == {}
    compare.publish(path, "one", runs)
    assert compare.read_published(path, "one") == compare.read_published(path, None) == runs
    assert compare.read_published(path, "another") is None


@pytest.mark.parametrize("name", ["recipe", "recipe-parts"])
def test_what_the_repository_holds_has_the_settings_that_the_recipes_have(name):
    path = learn.ROOT / "docs" / "images" / f"{BENCHES[name]['picture']}.json"
    runs, published = learn.runs_of(BENCHES[name]), compare.read_published(path, None) or {}
    held = [run for run in runs if run.title in published]
    assert len(held) > len(runs) / 2
    for run in held:
        assert published[run.title]["settings"] == learn.identity(BENCHES[name], run), run.title


def test_a_difference_is_of_the_same_seeds_with_students_interval():
    # Differences -1, -2, -3: mean -2, standard error 1/sqrt(3), t(0.975, 2) = 4.3027.
    words = compare.difference({0: 1.0, 1: 1.0, 2: 1.0, 3: 9.0}, {0: 2.0, 1: 3.0, 2: 4.0})
    assert words == "-2.0000 ± 2.4841"
    assert compare.difference({0: 1.0, 1: 1.2}, {0: 2.0, 1: 2.1}) == "-0.9500 ± 0.6353 better"


def test_steps_to_a_loss_are_read_off_between_two_evaluations():
    curve = [(10, 5.0), (20, 4.0), (30, 4.2), (40, 2.2)]
    assert compare.steps_to(curve, 4.25) == 17.5
    assert compare.steps_to(curve, 3.2) == 35
    assert compare.steps_to(curve, 2.0) is None


def test_counted_losses_are_those_of_counting_one_by_one():
    train, held_out = np.array([[0, 3, 4, 3, 4, 5]]), np.array([[0, 3, 4, 4]])
    seen = {3: 3, 4: 3, 5: 2, 6: 1}  # add-one over the seven pieces, 0 to 2 being special
    unigram = {piece: n / (sum(seen.values()) + 3) for piece, n in seen.items()}
    # After 0 came 3; after 3 came 4 twice; after 4 came 3 and 5.
    bigram = [0.25 + 0.75 * unigram[3], 1.25 / 2 + 0.75 / 2 * unigram[4], 0.75 * 2 / 2 * unigram[4]]
    losses = compare.ngram_losses(train, held_out, 7, [0, 1, 2])
    assert losses["unigram"] == pytest.approx(-sum(math.log(unigram[i]) for i in (3, 4, 4)) / 3)
    assert losses["bigram"] == pytest.approx(-sum(map(math.log, bigram)) / 3)
