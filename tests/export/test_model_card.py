"""The model card states language and sources, and contains no local paths."""

import dataclasses
import json
import os
from types import SimpleNamespace

import pytest
import yaml

from bigbird_ja.export import model_card
from bigbird_ja.export.folder import fill_huggingface
from bigbird_ja.huggingface import description
from bigbird_ja.text.tokenizer import Tokenizer

pytest.importorskip("safetensors", reason="needs the huggingface extra")


def front(card):
    """Parse the card's YAML header, which the Hub reads."""
    return yaml.safe_load(card.split("---\n")[1])


@pytest.mark.parametrize(("tokens", "code"), [(["の"], "ja"), (["the"] * 99 + ["の"], None)])
def test_language_is_known_from_the_vocabulary(trained, tokens, code):
    """State the mask token and vocabulary of the tokenizer, and an example in its language."""
    special = SimpleNamespace(mask=0)
    theirs = SimpleNamespace(tokens=tokens, written=["<mask>"], special=special, vocab_size=7)
    theirs.is_japanese = Tokenizer.is_japanese.func(theirs)
    other = dataclasses.replace(trained, tokenizer=theirs)
    card = model_card.format_card(other, model_card.Options("x"), {})
    assert front(card).get("language") == code
    assert ("日本の首都" in card) == (code == "ja")
    # This tokenizer contains neither markers nor [MASK].
    assert "_START_" not in card and "[MASK]" not in card
    assert front(card)["mask_token"] == "<mask>" and "| 7 tokens of another model's" in card
    assert "| masking | 15% of the tokens, dynamic, " in card
    assert "`_START_ARTICLE_`" in model_card.format_card(trained, model_card.Options("x"), {})
    stated = model_card.Options("x", language="ko,en")
    assert front(model_card.format_card(other, stated, {}))["language"] == ["ko", "en"]


def test_many_files_are_summarized_by_their_folder(trained, manifest):
    """Name a folder of 399 files once instead of each file."""
    paths = [f"/home/me/diary/{i}.txt" for i in range(399)]
    many = dataclasses.replace(manifest, sources=("/home/me/a.jsonl", *paths, "hf:a/b@c:train"))
    card = model_card.format_card(trained, model_card.Options("x", manifest=many), {})
    data = "a.jsonl, a folder of 399 files (0.txt, ...), hf:a/b@c:train: "
    assert f"| data | {data}" in card and "/home/me" not in card


def test_foreign_names_are_escaped(trained, manifest):
    """Escape file names in the card's HTML and tables."""
    odd = "<img src=x onerror=alert(1)>|\n---\nlicense: mit.jsonl"
    mixed = dataclasses.replace(manifest, sources=(odd,))
    card = model_card.format_card(
        trained, model_card.Options("my <b>bird</b>\n## x", manifest=mixed), {}
    )
    assert "<img" not in card and "<b>" not in card and "\n## x" not in card
    assert card.count("\nlicense: ") == 1
    (row,) = [line for line in card.splitlines() if line.startswith("| data |")]
    assert row.count("|") - row.count("\\|") == 3


def test_results_without_a_number_say_so():
    evaluation = {"masked_lm_loss": None, "masked_lm_accuracy": 0.5}
    text = "\n".join(model_card.format_results({"step": 6, "loss": None}, evaluation))
    assert text.count("not a number") == 3 and "50.00%" in text


def test_weights_have_the_permissions_of_the_other_files(trained, tmp_path):
    before = os.umask(0o027)
    try:
        fill_huggingface(str(tmp_path), trained, model_card.Options("x"))
    finally:
        os.umask(before)
    assert oct((tmp_path / "model.safetensors").stat().st_mode & 0o777) == oct(0o640)


def test_card_counts_texts_with_other_token_ids(trained):
    odd = {"class": "T", "texts": 28, "identical_texts": 27, "agrees": False}
    report = {"tokenizer": {**odd, "identical_articles": True}}
    card = model_card.format_card(trained, model_card.Options("x"), report)
    assert "`T` gives other token ids than training's tokenizer in 1 of 28 texts, all of" in card


SOURCE = """---
language:
- en
- ja
license: apache-2.0
tags: [sentence-transformers, sentence-similarity]
---
# enc
`SentenceTransformer("acme/enc")`, better than `AutoModel.from_pretrained("acme/other")`.
"""
_POOLING = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}


def sentence_encoder(folder, positions=512, card=SOURCE):
    """Write a folder of a sentence-transformers BERT without weights, and describe it."""
    prefix = "sentence_transformers.models"
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_D": "Dense", "3_Normalize": "Normalize"}
    files = {
        "config.json": {"model_type": "bert", "max_position_embeddings": positions},
        "modules.json": [{"type": f"{prefix}.{k}", "path": path} for path, k in kinds.items()],
        "1_Pooling/config.json": _POOLING,
        "sentence_bert_config.json": {"max_seq_length": 99, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "query: "}},
    }
    (folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "README.md").write_text(card, "utf-8")
    return description.describe(str(folder))


def begun_from(monkeypatch, **record):
    about = {"source": "/home/me/e5", "kind": "a Hugging Face folder, bert", "weights": {}}
    event = {"event": "started", "time": 1.0, "init_from": about | record}
    monkeypatch.setattr("bigbird_ja.model_dir.log.read_events", lambda folder: [event])


def test_card_takes_license_language_and_tags_of_the_source(trained, tmp_path, monkeypatch):
    """Copy license, language and tags from the card of the encoder that training started from.

    The new card names this encoder as base model.
    """
    stated = sentence_encoder(tmp_path)
    note = "position_embeddings: 512 positions repeated"
    head = ["cls/predictions/transform/kernel"]
    begun_from(monkeypatch, folder=stated, adapted=[note], random=head)
    card = model_card.format_card(trained, model_card.Options("mine"), {})
    header = front(card)
    assert header["base_model"] == "acme/enc" and header["language"] == ["en", "ja"]
    assert header["license"] == "apache-2.0" and "No license" not in card
    assert header["tags"] == ["bigbird", "sentence-transformers", "sentence-similarity"]
    assert "512 positions repeated. Positions beyond the source's length" in card
    assert "no masked-LM head" in card and "Dense is left out" in card
    other = model_card.Options("mine", "mit", language="ko")
    header = front(model_card.format_card(trained, other, {}))
    assert (header["license"], header["language"]) == ("mit", "ko")


def test_folder_name_is_not_a_base_model(trained, tmp_path, monkeypatch):
    """Name no base model if the card of the source encoder is damaged or names no model."""
    broken = SOURCE.replace("apache-2.0", "free").replace("acme/enc", "acme/else")
    for number, text in enumerate((broken, "---\na: [\n---\n", "\0", "---\n- 1\n---\n")):
        (folder := tmp_path / str(number)).mkdir()
        begun_from(monkeypatch, folder=sentence_encoder(folder, card=text))
        card = model_card.format_card(trained, model_card.Options("x"), {})
        assert "base_model" not in front(card)
        assert front(card)["license"] == ("other" if number else "free")
        assert "trained on from e5 (a Hugging Face folder, bert)" in card


@pytest.mark.parametrize(("positions", "limit"), [(512, 99), (256, 99), (128, None)])
def test_sentence_transformers_modules_are_those_of_the_source(
    trained, tmp_path, monkeypatch, positions, limit
):
    """Copy pooling, normalization, maximum length and prompts from the source encoder.

    An earlier version wrote mean pooling for all models.
    """
    (source := tmp_path / "source").mkdir()
    (made := tmp_path / "made").mkdir()
    begun_from(monkeypatch, folder=sentence_encoder(source, positions))
    fill_huggingface(str(made), trained, model_card.Options("x"))

    def read(name):
        return json.loads((made / name).read_text("utf-8"))

    kinds = [module["type"].rpartition(".")[2] for module in read("modules.json")]
    assert kinds == ["Transformer", "Pooling", "Normalize"]  # Dense has weights and is left out.
    assert read("modules.json")[2]["path"] == "2_Normalize"
    assert read("1_Pooling/config.json") == _POOLING
    assert read("config_sentence_transformers.json") == {"prompts": {"query": "query: "}}
    # The source's limit is not copied if our model's maximum length exceeds the source's positions.
    if limit is None:
        assert not (made / "sentence_bert_config.json").exists()
    else:
        assert read("sentence_bert_config.json")["max_seq_length"] == limit


CACHED = "/home/me/.cache/huggingface/hub/models--sbintuitions--modernbert-ja/snapshots/9f/"
FOLDER = {"kind": "a Hugging Face folder, modernbert", "weights": {"model.safetensors": "ab12"}}


@pytest.mark.parametrize(
    ("source", "name", "commit"),
    [(CACHED, "sbintuitions/modernbert-ja", ", commit 9f"), ("gs://b/c/my enc", "my enc", "")],
)
def test_card_of_a_continued_encoder_names_its_source(trained, monkeypatch, source, name, commit):
    """Name the encoder that training started from.

    An earlier version wrote "pretrained from scratch" in every card.
    """
    begun_from(monkeypatch, source=source, **FOLDER)
    text = model_card.format_card(trained, model_card.Options("x"), {})
    assert front(text).get("base_model") == (name if commit else None)
    kind = f"(a Hugging Face folder, modernbert{commit})"
    assert f"trained on from {name} {kind} with bigbird-ja" in text
    assert "model.safetensors `ab12`" in text and "/home/me" not in text
    assert "That model's license applies, too" in text


def test_card_names_the_source_of_the_source(trained, monkeypatch):
    run = {"kind": "a run of bigbird-ja, step 5", "weights": {"x.index": "cd34"}}
    begun_from(monkeypatch, source="/r/run", **run, init_from={"source": CACHED, **FOLDER})
    text = model_card.format_card(trained, model_card.Options("x"), {})
    assert (
        "from run (a run of bigbird-ja, step 5), itself from sbintuitions/modernbert-ja (" in text
    )
    assert "x.index `cd34`" in text and front(text)["base_model"] == "sbintuitions/modernbert-ja"
