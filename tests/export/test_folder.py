"""The exported folder works in transformers, and computes the outputs of the trained model."""

import dataclasses
import importlib.util
import json
import pkgutil
import shutil
import sys

import numpy as np
import pytest

from bigbird_ja.export import model_card, parity
from bigbird_ja.export.folder import fill_huggingface
from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.model.forward import encode, masked_lm_logits, next_sentence_logits
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data

torch = pytest.importorskip("torch", reason="parity needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
pytestmark = pytest.mark.both


@pytest.fixture(scope="module")
def exported(small_run, trained, manifest, tmp_path_factory):
    """Return an exported folder and its parity report."""
    folder = tmp_path_factory.mktemp("hf")
    options = model_card.Options("tiny", "other", small_run.data_dir, manifest)
    return folder, fill_huggingface(str(folder), trained, options)


def test_parity_report_agrees_and_the_card_states_it(exported, trained):
    folder, report = exported
    assert report["tokenizer"]["agrees"], report["tokenizer"]
    assert report["scores"]["agrees"] and report["scores"]["predictions"] > 50, report["scores"]
    losses = report["masked_lm_loss"]
    assert losses["exported"] == pytest.approx(losses["bigbird_ja"], abs=1e-4)
    assert {"transformers", "tokenizers", "sentencepiece", "torch"} <= report["versions"].keys()
    assert f"transformers {transformers.__version__}" in parity.format_report(report)
    assert "not_compared" not in report
    text = parity.format_report(report)
    assert "DO NOT" not in text and "identical in 28 of 28" in text
    assert json.loads((folder / "parity_report.json").read_text())["step"] == trained.meta.step
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlanguage: ja\nlicense: other\n") and "long-context" not in card
    loss = f"loss {losses['exported']:.4f} with"
    for fact in (
        "6 of 6",
        "pretrained from scratch with",
        "1,200 SentencePiece tokens",
        "not recorded",
        loss,
    ):
        assert fact in card, fact


def test_parity_report_notices_another_layer_norm(exported, trained, small_run, manifest, tmp_path):
    """Change `layer_norm_eps` in an exported folder, and check that the report finds a difference.

    The change of the outputs is small, but larger than rounding errors.
    """
    copy = shutil.copytree(exported[0], tmp_path / "hf")
    config = json.loads((copy / "config.json").read_text())
    assert config["layer_norm_eps"] == 1e-12
    (copy / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 1e-5}))
    scores = parity.compare(str(copy), trained, manifest, small_run.data_dir)["scores"]
    assert not scores["agrees"]
    same = exported[1]["scores"]
    assert 10 * same["mean_difference"] < same["tolerance"] < scores["mean_difference"] / 2


@pytest.fixture
def modules_here(tmp_path, monkeypatch):
    """Let transformers copy and import a model's code only in the folder of this test."""
    cache = "transformers.dynamic_module_utils.HF_MODULES_CACHE"

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
            del sys.modules[name]

    before = pkgutil.resolve_name(cache)
    monkeypatch.setattr(cache, str(tmp_path))
    # Another test in this process may have added the default cache of transformers to sys.path.
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != before])
    forget()
    yield
    forget()


@pytest.mark.usefixtures("modules_here")
def test_code_of_the_card_runs(exported):
    folder, _ = exported
    card = (folder / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in card.split("```python\n")[1:]]
    assert len(blocks) == 3 and "SentenceTransformer" in blocks[2]
    if importlib.util.find_spec("sentence_transformers") is None:
        blocks.pop()
    code = "\n".join(blocks).replace("PATH_TO_THIS_FOLDER", str(folder))
    # All code blocks except one load the code in the folder, whose attention accepts long inputs.
    assert code.count("trust_remote_code=True") == len(blocks) - 1
    exec(code, {})


def test_report_without_pytorch_compares_only_token_ids(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    # transformers 5 checks only at import whether PyTorch is installed.
    monkeypatch.setattr("transformers.configuration_utils.is_torch_available", lambda: False)
    report = fill_huggingface(str(tmp_path), trained, model_card.Options("x"))
    assert report["not_compared"].startswith("PyTorch is not installed")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "was not compared with training's (PyTorch is not installed" in card


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("BigBirdForPreTraining", "gelu"),
        ("BigBirdForMaskedLM", "relu"),
        ("ModernBertForMaskedLM", "gelu_new"),
    ],
)
def test_full_attention_equals_that_of_transformers_classes(trained, tmp_path, kind, act):
    """Compare the logits of a model with random weights, and load its exported folder again.

    The attention heads of the ModernBERT have the size 128.
    """
    is_modern, is_of_pairs = kind.startswith("Modern"), kind == "BigBirdForPreTraining"
    changed = {"model.hidden_act": act, "model.attention_type": "original_full"}
    if is_modern:
        del changed["model.attention_type"]
        changed |= {"model.architecture": "modernbert", "model.hidden_size": 256}
    config = replace_settings(trained.config, {**changed, "make_data.nsp": is_of_pairs})
    random, scale = np.random.default_rng(5), (1.28 / config.model.hidden_size) ** 0.5
    params = {
        name: value + random.normal(0, scale, value.shape).astype(np.float32)
        for name, value in draw_parameters(*with_data(config), seed=1).items()
    }
    data = dataclasses.replace(trained.data, nsp=is_of_pairs)
    changed = dataclasses.replace(trained, config=config, data=data, params=params)
    fill_huggingface(str(tmp_path), changed, model_card.Options("x"))
    settings = hf_config.read_config(str(tmp_path)).settings
    assert settings == {name: getattr(config.model, name) for name in settings}
    assert settings["hidden_act"] == act
    read = load_initial(str(tmp_path), *with_data(config)).values
    assert all((read[name] == value).all() for name, value in params.items())
    ids = random.integers(7, 1000, (2, 96))
    ids[0, 48:] = 0  # Half of the first sequence is padding.
    segments, tokens = np.sort(random.integers(0, 2, ids.shape), axis=1), ids > 0
    given = (ids, tokens.astype(int), segments)[: 2 if is_modern else 3]
    theirs = getattr(transformers, kind).from_pretrained(str(tmp_path)).requires_grad_(False)
    outputs = theirs.eval()(*map(torch.from_numpy, given))
    hidden = encode(params, *with_data(config), ids.astype(np.int32), segments.astype(np.int32))
    logits = masked_lm_logits(params, config, hidden).numpy()
    expected = outputs[0].numpy()
    np.testing.assert_allclose(logits[tokens], expected[tokens], atol=1e-4, rtol=1e-4)
    assert np.abs(expected).max() > 1  # The logits are far from zero.
    if config.make_data.nsp:
        relation = next_sentence_logits(params, hidden[:, 0]).numpy()
        np.testing.assert_allclose(relation, outputs["seq_relationship_logits"], atol=1e-4)
