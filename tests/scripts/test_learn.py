"""`scripts.learn`: its recipes contain valid settings, and it compares losses correctly."""

import shutil
from pathlib import Path

import pytest
import yaml

from scripts import compare, learn

BENCHES = yaml.safe_load(Path(learn.__file__).with_name("recipes.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", BENCHES)
def test_every_recipe_contains_existing_settings(name):
    bench = BENCHES[name]
    for run in learn.runs_of(bench):
        learn.resolved_settings(bench, run)


@pytest.mark.parametrize("name", ["recipe", "recipe-parts", "recipe-tokens"])
def test_published_results_have_the_settings_of_the_recipes(name):
    path = learn.ROOT / "docs" / "images" / f"{BENCHES[name]['picture']}.json"
    runs, published = learn.runs_of(BENCHES[name]), compare.read_published(path, None) or {}
    held = [run for run in runs if run.title in published]
    assert len(held) > len(runs) / 2
    for run in held:
        assert published[run.title]["settings"] == learn.identity(BENCHES[name], run), run.title


def test_without_the_text_stored_results_are_drawn_and_not_rewritten(tmp_path, monkeypatch, capsys):
    for name in ("scripts/recipes.yaml", "docs/images/initialization.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        kept = shutil.copy(learn.ROOT / name, tmp_path / name)
    before = Path(kept).read_text("utf-8")
    monkeypatch.setattr(learn, "ROOT", tmp_path)
    monkeypatch.setattr(learn, "ONE_CORE", {})
    monkeypatch.delenv(learn.TEXT, raising=False)
    monkeypatch.setattr("sys.argv", ["learn", "initialization", "--kept", f"--work_dir={tmp_path}"])
    learn.main()
    assert "initialization.json: as it was" in capsys.readouterr().out
    assert Path(kept).with_suffix(".png").exists() and Path(kept).read_text("utf-8") == before


def test_differences_are_of_the_same_seeds_with_intervals_that_hold_together():
    # The differences are -1, -2, -3, with mean -2, standard error 1/sqrt(3), t(0.975, 2) = 4.3027.
    ours, base = {0: 1.0, 1: 1.0, 2: 1.0, 3: 9.0}, {0: 2.0, 1: 3.0, 2: 4.0}
    assert compare.differences({"a": (ours, base)}) == {"a": "-2.0000 ± 2.4841"}
    # By Holm's method the smaller of two p-values is compared with 0.025 (t(0.9875, 2) = 6.2053),
    # the other one with 0.05.
    near = {0: 1.0, 1: 2.0, 2: 2.99}
    words = compare.differences({"a": (ours, base), "b": (near, base)})
    assert words == {"a": "-2.0000 ± 2.4841", "b": "-1.0033 ± 0.0207 better"}
    two = {"c": ({0: 1.0, 1: 1.2}, {0: 2.0, 1: 2.1})}
    assert compare.differences(two) == {"c": "-0.9500"}  # Two seeds have no interval.
