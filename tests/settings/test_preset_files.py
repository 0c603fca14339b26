"""The presets resolve, and their headers state their use."""

import pathlib

import pytest

from bigbird_ja.settings.checks import config_warnings
from bigbird_ja.settings.resolve import fit_to_data, resolve_config
from testkit.configs import with_data

CONFIGS = sorted((pathlib.Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_presets_resolve_and_their_headers_say_what_for(path):
    config, overrides = resolve_config(str(path))
    assert overrides and config_warnings(config) == []
    fitted_config = fit_to_data(*with_data(config))
    assert fitted_config.model.vocab_size == config.tokenize.vocab_size
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert all(f"# {word}:" in header for word in ("For", "Hardware", "Time", "Expect"))
