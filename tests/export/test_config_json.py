"""A BERT, RoBERTa or XLM-R keeps its class on export if its maximum length was not changed."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from bigbird_ja.data.manifest import TOKENIZER_NAME
from bigbird_ja.export import model_card, parity
from bigbird_ja.export.folder import fill_huggingface
from bigbird_ja.huggingface import run_settings
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.model_dir.checkpoints import Meta
from bigbird_ja.model_dir.model import TrainedModel
from bigbird_ja.settings.data_facts import Data, derive_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.text import articles
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import resolve_config

torch = pytest.importorskip("torch", reason="the models are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders  # noqa: E402 - this module imports transformers
from tests.export.test_model_card import begun_from, front  # noqa: E402
from tests.huggingface import folders  # noqa: E402

pytestmark = pytest.mark.both
_KINDS = {
    "Bert": ("wordpiece", {"max_position_embeddings": 96}),
    "Roberta": ("roberta_bpe", {"max_position_embeddings": 98, "type_vocab_size": 1}),
    "XLMRoberta": ("roberta_bpe", {"max_position_embeddings": 98, "type_vocab_size": 1}),
}


@pytest.fixture(scope="module", params=list(_KINDS))
def source(request, tmp_path_factory):
    """Return the folder of an encoder with random weights, and the prefix of its class."""
    folder = tmp_path_factory.mktemp("source")
    tokenizer, sizes = _KINDS[request.param]
    getattr(tokenizer_folders, tokenizer)(folder, list(articles.generate(20, seed=5)))
    folders.save_encoder(request.param, folder, hidden_dropout_prob=0.05, **sizes)
    return folder, request.param


@dataclass(frozen=True, kw_only=True)
class _Made(Data):
    """Facts of a data set, with an additional field of the manifest that a run reads."""

    tokenizer_sha256: str = ""


def begun(folder, length, place, monkeypatch, **sets):
    """Start a run from the encoder in `folder`, on sequences of `length` tokens.

    Returns:
        The model at step 0, and the notice that `pretrain` prints about the model's attention.
    """
    tokenizer = read_tokenizer(str(folder))
    about = [f"make_data.seq_length={length}", f"tokenize.vocab_size={tokenizer.vocab_size}"]
    facts = vars(derive_data(resolve_config(None, about)[0], tokenizer.special.pad))
    data = _Made(**facts, tokenizer_sha256=tokenizer.sha256)
    (place / "data").mkdir(exist_ok=True)
    (place / "data" / TOKENIZER_NAME).write_bytes(tokenizer.model_bytes)
    adopted = run_settings.adopt_settings(str(folder), data, str(place / "data"))
    given = [f"model.{name}={value}" for name, value in sets.items()]
    config = fit_to_data(resolve_config(None, given, adopted=adopted)[0], data)
    first = load_initial(str(folder), config, data)
    begun_from(monkeypatch, **first.record)
    meta = Meta(0, "c" * 64, "d" * 64, 0.0, 0, 0, 0.0, 0, 1)
    run = TrainedModel(str(place), config, data, dict(first.values), tokenizer, meta)
    return run, run_settings.make_attention_notice(str(folder), config, data)


@pytest.mark.parametrize("length", [64, 96])
def test_continued_encoder_is_exported_as_its_class(source, length, tmp_path, monkeypatch):
    """Export the encoder as its own class, without code.

    An earlier version exported it as a BigBird with code, although its attention is full.
    """
    folder, kind = source
    run, notice = begun(folder, length, tmp_path, monkeypatch)
    assert f"`export` will write a {kind}ForMaskedLM" in notice
    fill_huggingface(str(tmp_path), run, model_card.Options("x"))
    theirs, made = (
        transformers.AutoModelForMaskedLM.from_pretrained(path, output_loading_info=True)
        for path in (folder, tmp_path)
    )
    assert type(made[0]) is type(theirs[0]) is getattr(transformers, f"{kind}ForMaskedLM")
    assert not made[1]["missing_keys"] and not made[1]["mismatched_keys"]
    kept = ("max_position_embeddings", "type_vocab_size", "hidden_dropout_prob", "pad_token_id")
    for key in kept:
        assert getattr(made[0].config, key) == getattr(theirs[0].config, key), key
    ids = torch.from_numpy(np.random.default_rng(1).integers(7, 2000, (2, 96)))
    mask = torch.ones_like(ids)
    ids[0, 50:], mask[0, 50:] = theirs[0].config.pad_token_id, 0
    with torch.no_grad():
        logits = [model.eval()(ids, mask).logits.numpy() for model, _ in (theirs, made)]
    seen = mask.numpy() > 0
    np.testing.assert_allclose(logits[0][seen], logits[1][seen], atol=1e-5)
    batch = {"input_ids": ids[1:].numpy(), "masked_lm_positions": np.array([[3, 90]])}
    ours, other = parity.score_trained(run, batch), parity.score_exported(str(tmp_path), run, batch)
    np.testing.assert_allclose(ours, other, atol=1e-5)
    assert not list(tmp_path.glob("*.py")) and "auto_map" not in made[0].config.to_dict()
    card = (tmp_path / "README.md").read_text("utf-8")
    assert "trust_remote_code" not in card and f"(transformers' `{kind}ForMaskedLM`), " in card
    tag = json.loads((folder / "config.json").read_text())["model_type"]
    assert front(card)["tags"] == [tag] and "| attention | all tokens |" in card


def test_longer_sequences_get_bigbirds_attention_and_class(source, tmp_path, monkeypatch):
    folder, kind = source
    for length, sets in ((1024, {}), (96, {"attention_type": "block_sparse", "block_size": 4})):
        run, notice = begun(folder, length, tmp_path, monkeypatch, **sets)
        assert "attention is BigBird's (" in notice and "96 positions" in notice
        (made := tmp_path / str(length)).mkdir()
        fill_huggingface(str(made), run, model_card.Options("x"))
        assert json.loads((made / "config.json").read_text())["model_type"] == "big_bird"
        assert (made / "modeling_bigbird_ja.py").exists()
    full = {"attention_type": "original_full"}
    _, notice = begun(folder, 1024, tmp_path, monkeypatch, **full)
    assert f"will write a {kind}ForMaskedLM" in notice
