"""`config` shows the settings of a command and their sources, as a file for --config."""

import pytest

from bigbird_ja.settings.config_file import list_presets
from bigbird_ja.settings.values import flatten
from bigbird_ja.settings.variants import OPTIONS
from testkit.configs import resolve_config


@pytest.mark.parametrize("name", list_presets())
def test_the_output_is_a_file_of_the_same_settings(name, tmp_path, run):
    ended = run("config", name, "--set=training.adam_epsilon=1e-7")
    assert ended.status == 0 and ended.stderr == ""
    (tmp_path / "again.yaml").write_text(ended.stdout, encoding="utf-8")
    again, _ = resolve_config(str(tmp_path / "again.yaml"))
    assert again == resolve_config(name, ["training.adam_epsilon=1e-7"])[0]
    assert again.training.adam_epsilon == 1e-7


def test_each_setting_has_its_meaning_and_source(run):
    text = run("config", "tiny-cpu", "--set=model.num_layers=3").stdout
    assert all(len(line) < 80 for line in text.splitlines())
    stated = " ".join(text.replace("\n#", "").split())
    text = " ".join(text.replace("\n  #", "").split())  # Join comments that span several lines.
    settings = [OPTIONS[key] for key in flatten(resolve_config("tiny-cpu")[0])]
    assert [option.key for option in settings if option.meaning not in text] == []
    assert "Layers of the encoder. [layers, 1 to 1000] (--set) num_layers: 3" in text
    assert "[heads, 1 to 1024] (preset tiny-cpu) num_attention_heads: 2" in text
    assert "(default) layer_norm_eps: 1.0e-12" in text and "[unigram | bpe] (default)" in text
    assert "small-1024: A small encoder of 1,024 tokens: a first run on your" in stated
    assert all(f"{name}: " in stated for name in list_presets()), "the presets there are"


def test_json_has_all_declarations_and_warnings(run):
    flags = ("--set=model.num_layers=3", "--set=training.num_train_steps=40")
    ended = run("config", "--config=base-4096", *flags, "--json")
    settings = ended.json["settings"]
    assert ended.status == 0 and settings.keys() == flatten(resolve_config("base-4096")[0]).keys()
    assert settings["model.num_layers"] == {
        "value": 3,
        "source": "--set",
        "default": 12,
        "meaning": "Layers of the encoder.",
        "unit": "layers",
        "allowed": "1 to 1000",
    }
    assert settings["training.learning_rate"]["source"] == "preset base-4096"
    assert settings["model.vocab_size"]["value"] is None
    (warning,) = ended.json["warnings"]
    assert "training.warmup_steps=10,000" in warning and warning in ended.stderr


def test_a_file_of_a_presets_name_is_named_as_a_file(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-cpu").write_text("model: {num_layers: 7}\n")
    (tmp_path / "mine").write_text("model: {num_layers: 8}\n")
    assert "num_layers: 2\n" in run("config", "tiny-cpu").stdout
    assert "num_layers: 7\n" in run("config", "./tiny-cpu").stdout
    assert "num_layers: 8\n" in run("config", "mine").stdout
