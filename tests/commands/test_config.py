"""`config`: what a command would use, where it came from, and a file that says the same again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bigbird_ja.cli import main
from bigbird_ja.settings.resolve import preset_names, resolve_config
from bigbird_ja.settings.schema import OPTIONS


def run(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    status = main.run_command_line(["config", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("name", preset_names())
def test_what_it_prints_is_a_file_of_the_same_settings(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    status, out, err = run(capsys, name, "--set=training.adam_epsilon=1e-7")
    assert status == 0 and err == ""
    (tmp_path / "again.yaml").write_text(out, encoding="utf-8")
    again, _ = resolve_config(str(tmp_path / "again.yaml"))
    assert again == resolve_config(name, ["training.adam_epsilon=1e-7"])[0]
    assert again.training.adam_epsilon == 1e-7


def test_each_line_has_its_meaning_and_where_it_came_from(capsys: pytest.CaptureFixture) -> None:
    _, out, _ = run(capsys, "tiny-cpu", "--set=model.num_layers=3")
    lines = {line.split(":")[0].strip(): line for line in out.splitlines()}
    for key, option in OPTIONS.items():
        assert f"# {option.help}" in out, key
    assert lines["num_layers"].endswith("Layers of the encoder. (--set)")
    assert "(preset tiny-cpu)" in lines["num_attention_heads"]
    assert lines["layer_norm_eps"].endswith("(default)")
    assert all(name in out for name in preset_names()), "the presets there are"


def test_json_has_everything_that_is_declared(capsys: pytest.CaptureFixture) -> None:
    status, out, _ = run(capsys, "--config=base-4096", "--set", "model.num_layers=3", "--json")
    result = json.loads(out)["settings"]
    assert status == 0 and result.keys() == OPTIONS.keys()
    assert result["model.num_layers"] == {
        "value": 3, "source": "--set", "default": 12, "meaning": "Layers of the encoder.",
        "unit": "layers", "allowed": "1 to 1000",
    }  # fmt: skip
    assert result["training.num_train_steps"]["source"] == "preset base-4096"
    assert result["model.vocab_size"]["value"] is None


def test_only_what_one_command_uses(capsys: pytest.CaptureFixture) -> None:
    status, out, _ = run(capsys, "tiny-cpu", "--command=tokenize")
    assert status == 0 and "vocab_size: 2000" in out and "make_data:" not in out
    _, out, _ = run(capsys, "tiny-cpu", "--command=make-data")
    assert "  block_size: 16" in out and "num_layers" not in out
    status, _, err = run(capsys, "--command=tokenize", "--set=model.num_layers=3")
    assert status == 2 and "model.num_layers" in err and "tokenize.*" in err


def test_unlikely_settings_are_warned_about(capsys: pytest.CaptureFixture) -> None:
    status, out, err = run(capsys, "--set=training.num_train_steps=40", "--json")
    assert status == 0 and "training.warmup_steps=10,000" in err
    assert len(json.loads(out)["warnings"]) == 1


def test_unknown_names_list_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "base-409")
    assert status == 2 and "'base-4096'" in err and all(name in err for name in preset_names())
    status, _, err = run(capsys, "configs/tiny-cpu.yaml")
    assert status == 2 and "no such file" in err


def test_a_file_of_a_presets_name_is_named_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-cpu").write_text("model: {num_layers: 7}\n")
    (tmp_path / "mine").write_text("model: {num_layers: 8}\n")
    assert "num_layers: 2 " in run(capsys, "tiny-cpu")[1]
    assert "num_layers: 7 " in run(capsys, "./tiny-cpu")[1]
    assert "num_layers: 8 " in run(capsys, "mine")[1]
