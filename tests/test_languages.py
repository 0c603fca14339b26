"""The commands from `tokenize` to `export`, in a language with and in one without spaces."""

import json

import pytest

import bigbird_ja
from testkit.languages import documents_of

_TEXTS = {"en": "the old teacher often [MASK] the letter.", "zh": "我们昨天[MASK]图书馆。"}
_SETTINGS = {
    "model.hidden_size": 32,
    "model.num_layers": 1,
    "training.warmup_steps": 2,
    "checkpoints.save_every_minutes": 0,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", _TEXTS)
def test_another_language_is_trained_exported_and_continued(language, tmp_path):
    pytest.importorskip("torch", reason="parity needs PyTorch")
    corpus, place = tmp_path / "corpus.jsonl", {name: tmp_path / name for name in "abcdef"}
    lines = [json.dumps({"text": text}) for text in documents_of(language, 150)]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    tokens = 70 if language == "en" else 180
    made = bigbird_ja.tokenize(
        inputs=[corpus], output_prefix=place["a"], vocab_size=tokens, character_coverage=1.0
    )
    assert made.unknown_rate == 0
    data = bigbird_ja.make_data(
        inputs=[corpus],
        tokenizer=made.model,
        output_dir=place["b"],
        config="tiny-cpu",
        seq_length=128,
        mask_unit="whole_word",
        num_workers=1,
    )
    assert data.density > 0.95 and data.unknown_rate == 0
    assert bigbird_ja.check_data(data_dir=place["b"]).problems == []
    about = {"config": "tiny-cpu", "overrides": _SETTINGS}
    bigbird_ja.pretrain(data_dir=place["b"], model_dir=place["c"], num_train_steps=60, **about)
    loss = bigbird_ja.evaluate(model_dir=place["c"], data_dir=place["b"]).masked_lm_loss
    assert 0 < loss < 5.0  # Uniform guesses have losses of 4.2 (en) and 5.2 (zh).
    filled = bigbird_ja.fill_mask(model_dir=place["c"], texts=[_TEXTS[language]])
    assert len(filled.masks) == 1
    bigbird_ja.export(model_dir=place["c"], output_dir=place["d"], data_dir=place["b"])
    card = (place["d"] / "README.md").read_text("utf-8")
    assert "language: ja" not in card and "Japanese text" not in card
    again = bigbird_ja.make_data(
        inputs=[corpus], tokenizer=place["d"], output_dir=place["e"], seq_length=128, num_workers=1
    )
    assert again.tokens == data.tokens
    continued = bigbird_ja.pretrain(
        data_dir=place["e"],
        model_dir=place["f"],
        init_from=str(place["d"]),
        num_train_steps=4,
        config="tiny-cpu",
    )
    assert continued.loss < 1.2 * loss
