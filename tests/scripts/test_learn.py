"""The learning bench: its recipes are made of settings, and what it prints follows from losses."""

from pathlib import Path

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
