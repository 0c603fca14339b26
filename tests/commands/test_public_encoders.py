"""Folders laid out as public encoders are go the whole road.

What `config.json` states is what the models' cards and transformers' code say; widths, layers and
vocabularies are small, and weights are drawn here.
"""

import json

import pytest

from bigbird_ja.text import articles
from testkit import ROOT
from tests.commands import test_encoder_road as road

torch = pytest.importorskip("torch", reason="the encoders are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders as folders  # noqa: E402 - it imports transformers

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

# Class, tokenizer, and keys as transformers 4 wrote them into the published config.json.
_FILE = ROOT / "tests/fixtures/public-encoders.json"
ENCODERS = json.loads(_FILE.read_text("utf-8"))


def lay_out(name, folder):
    """Writes the folder, its `config.json` with the published keys in the place of ours."""
    encoder = ENCODERS[name]
    stated = encoder["config"]
    getattr(folders, encoder["tokenizer"])(folder, list(articles.documents(40, seed=5)))
    kind, _, head = encoder["class"].partition("For")
    road.save_encoder(kind, folder, f"For{head}", **stated)
    config = json.loads((folder / "config.json").read_text())
    for new in ("layer_types", "rope_parameters"):
        config.pop(new, None)
    (folder / "config.json").write_text(json.dumps(config | stated))


@pytest.mark.parametrize("name", ENCODERS)
def test_a_public_layout_goes_the_whole_road(name, sample_corpus, run_cli, tmp_path):
    folder, data, model = (tmp_path / part for part in ("encoder", "data", "model"))
    lay_out(name, folder)
    road.make_data(run_cli, f"--input={sample_corpus}", folder, data, 128, "0.2")
    full = ["--set=model.attention_type=original_full"] if name == "tohoku BERT v3" else []
    before = road.go_on(run_cli, data, model, folder, 1, *full)
    expected = road.transformers_loss(folder, data)
    places = (f"--model_dir={model}", f"--data_dir={data}", f"--output_dir={tmp_path / 'hf'}")
    road.checked(run_cli("export", *places, timeout=900))
    theirs = transformers.AutoModelForMaskedLM
    _, info = theirs.from_pretrained(tmp_path / "hf", output_loading_info=True)
    print(f"{name}: {before:.5f} here, {expected:.5f} in transformers {transformers.__version__}")
    assert before == pytest.approx(expected, abs=1e-3)
    assert not info["missing_keys"] and not info["unexpected_keys"]
