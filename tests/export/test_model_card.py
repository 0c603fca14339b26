"""What the card says of language and sources, and what it keeps to itself."""

import dataclasses
import os
from types import SimpleNamespace

import pytest

from bigbird_ja import export
from bigbird_ja.export import model_card

pytest.importorskip("safetensors", reason="needs the huggingface extra")


@pytest.mark.parametrize(("pieces", "code"), [(["の"], "ja"), (["the"] * 99 + ["の"], None)])
def test_its_language_is_that_of_the_pieces(trained, pieces, code):
    """It wrote "[MASK]" for every tokenizer, and called the rows of the embeddings pieces."""
    special = SimpleNamespace(mask=0)
    theirs = SimpleNamespace(pieces=pieces, written=["<mask>"], special=special, vocab_size=7)
    other = dataclasses.replace(trained, tokenizer=theirs)
    card = model_card.text(other, model_card.Options("x"), {})
    front = card.split("---")[1]
    assert (f"language: {code}" if code else "# of no known language") in front.splitlines()
    assert ("日本の首都" in card) == (code == "ja")
    assert "_START_" not in card and "[MASK]" not in card  # not of this tokenizer
    assert 'mask_token: "<mask>"' in front and "| 7 pieces of another model's" in card
    assert "| masking | 15% of the tokens, dynamic, " in card
    assert "`_START_ARTICLE_`" in model_card.text(trained, model_card.Options("x"), {})


def test_names_of_others_are_text_and_nothing_else(trained, manifest):
    """File names went into the card's HTML and tables as they are."""
    odd = "<img src=x onerror=alert(1)>|\n---\nlicense: mit"
    mixed = dataclasses.replace(
        manifest, sources=tuple(f"/home/me/{name}.jsonl" for name in ("news", odd))
    )
    card = model_card.text(trained, model_card.Options("my <b>bird</b>\n## x", manifest=mixed), {})
    assert "news.jsonl" in card
    assert "<img" not in card and "<b>" not in card and "\n## x" not in card
    assert "/home/me" not in card and card.count("\nlicense: ") == 1
    (row,) = [line for line in card.splitlines() if line.startswith("| data |")]
    assert row.count("|") - row.count("\\|") == 3


def test_results_name_what_is_not_a_number():
    evaluation = {"masked_lm_loss": None, "masked_lm_accuracy": 0.5}
    text = model_card.results({"step": 6, "loss": None}, evaluation)
    assert text.count("not a number") == 3 and "50.00%" in text


def test_weights_are_as_readable_as_their_neighbours(trained, tmp_path):
    before = os.umask(0o027)
    try:
        export.fill_huggingface(str(tmp_path), trained, model_card.Options("x"))
    finally:
        os.umask(before)
    assert oct((tmp_path / "model.safetensors").stat().st_mode & 0o777) == oct(0o640)


def test_an_encoder_that_went_on_names_its_source(trained, monkeypatch):
    """It said "pretrained from scratch" of every model."""
    folder = {"kind": "a Hugging Face folder, modernbert", "weights": {"model.safetensors": "ab12"}}
    cached = "/home/me/.cache/huggingface/hub/models--sbintuitions--modernbert-ja/snapshots/9f/"
    run = {
        "source": "/home/me/run",
        "kind": "a run of ours, step 5",
        "weights": {"x.index": "cd34"},
    }
    started = [{"event": "started", "time": 1.0}]
    monkeypatch.setattr(model_card.run_log, "read_events", lambda folder: started)

    def card(record):
        started[0]["init_from"] = record
        text = model_card.text(trained, model_card.Options("x", license="mit"), {})
        print(text)
        return text

    for source, name in ((cached, "sbintuitions/modernbert-ja"), ("gs://b/c/my enc", "my enc")):
        text = card({"source": source, **folder})
        assert f'\nbase_model: "{name}"\nlibrary_name' in text and "from scratch" not in text
        commit = ", commit 9f" if source is cached else ""
        kind = f"(a Hugging Face folder, modernbert{commit})"
        assert f"trained on from {name} {kind} with bigbird-ja" in text
        assert "model.safetensors `ab12`" in text and "/home/me" not in text
        assert "whose licence holds for it as well" in text
    text = card({**run, "init_from": {"source": cached, **folder}})
    assert "from run (a run of ours, step 5), itself from sbintuitions/modernbert-ja (" in text
    assert "x.index `cd34`" in text and 'base_model: "sbintuitions/modernbert-ja"' in text
    text = card(None)
    assert "pretrained from scratch with" in text and "base_model" not in text
    assert "whose licence" not in text and "| first values | random |" in text
