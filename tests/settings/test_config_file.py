"""Files of settings are read as written, and refused in one line if they are invalid."""

import pathlib
from dataclasses import replace

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.checks import list_config_warnings
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.values import compute_config_fingerprint, flatten
from testkit.configs import resolve_config, with_data
from tests.settings.support import DATA, completed, write

CONFIGS = sorted((pathlib.Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: {num_layers: 2}", "unknown setting 'modle.num_layers' (did you mean 'model."),
        ("model: {hidden_size: 100, num_attention_heads: 12}", "hidden_size=100"),
        ("training: {global_batch_size: 3, gradient_accumulation_steps: 2}", "divisible"),
        ("model: [1, 2]", "model must contain"),
        ("make_data: {nsp: true}\nmodel: {attend_across_documents: false}", "segment B"),
        ("- a", "sections"),
        ("# nothing yet\n", "contains no settings"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, words):
    with pytest.raises(BadInput) as error:
        completed(path=write(tmp_path, text))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_run_is_read_back_from_its_file(tmp_path):
    data = replace(DATA, special_ids={"pad": 3})
    config = completed(data=data)
    path = write(tmp_path, config_to_yaml(config, data))
    assert flatten(*read_config(path)) == flatten(config, data) and read_config(path)[1] == data
    assert compute_config_fingerprint(config, data) != compute_config_fingerprint(config, DATA)
    assert resolve_config(path)[0].model == config.model, "a file that states all may state it"
    stated = write(tmp_path, "make_data: {pad_id: 3}")
    with pytest.raises(BadInput, match=r"unknown setting .make_data\.pad_id"):
        resolve_config(stated)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_presets_resolve_and_have_a_header(path):
    config, overrides = resolve_config(str(path))
    assert overrides and list_config_warnings(config) == []
    fitted_config = fit_to_data(*with_data(config))
    assert fitted_config.model.vocab_size == config.tokenize.vocab_size
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert all(f"# {word}:" in header for word in ("For", "Hardware", "Time", "Expect"))


def test_a_setting_that_the_stated_choice_lacks_is_refused(tmp_path):
    text = config_to_yaml(*with_data(resolve_config(None)[0]))
    path = write(
        tmp_path, text.replace("  masking: dynamic", "  masking: dynamic\n  dupe_factor: 2")
    )
    with pytest.raises(BadInput, match="dupe_factor"):
        read_config(path)
