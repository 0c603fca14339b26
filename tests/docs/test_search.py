"""Search over whole documents at toy size: the examples that train, judge and hand over."""

import importlib
import json
import re
import sys

import numpy as np
import pytest

from bigbird_ja.text import articles
from testkit import ROOT, tokenizer_folders
from tests.huggingface import folders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
for package in ("sentence_transformers", "datasets", "bm25s"):
    pytest.importorskip(package, reason=f"needs {package} (docs/examples/search.py says how)")
sys.path.insert(0, str(ROOT / "docs/examples"))
embed, search = map(importlib.import_module, ("embed", "search"))


@pytest.fixture
def folder(tmp_path):
    """Return a BERT of random weights with 128 positions."""
    tokenizer_folders.wordpiece(tmp_path / "bert", list(articles.generate(40, seed=5)))
    folders.save_encoder("Bert", tmp_path / "bert", max_position_embeddings=128)
    return tmp_path / "bert"


@pytest.fixture
def asked(tmp_path):
    """Write articles, each with two questions whose words stand in its last paragraph."""
    paths = tmp_path / "articles.jsonl", tmp_path / "questions.jsonl"
    with paths[0].open("w", encoding="utf-8") as of_texts, paths[1].open("w") as of_questions:
        for i, text in enumerate(articles.generate(40, seed=8, mean_length=500)):
            plain = re.sub(r"_[A-Z]+_\w*\n?|\n", " ", text)
            start = len(plain)
            for query in (f"番号{i * 7919}の合言葉", f"合言葉は{i * 7919}"):
                row = {"id": str(i), "query": query, "paragraph_start": start}
                of_questions.write(json.dumps(row) + "\n")
            of_texts.write(json.dumps({"id": str(i), "text": f"{plain}番号{i * 7919}"}) + "\n")
    return [f"--articles={paths[0]}", f"--questions={paths[1]}"]


def test_search_is_trained_and_judged_by_where_the_paragraph_begins(
    folder, asked, example, tmp_path
):
    made = tmp_path / "made"
    sets = ["--held_out=0.5", "--steps=2", "--batch_size=4", "--together=2", "--scale=50"]
    example(
        embed, folder, *asked, *sets, "--window=200", "--attention_window=64", f"--output={made}"
    )
    flags = [*asked, f"--cache={tmp_path / 'vectors'}", "--judged=0.4", "--tuned=0.1"]
    flags += ["--max_tokens", "64", "128", "--chunk_tokens=40"]
    flags += ["--attention_window=64"]
    once = example(search, made, *flags)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in once.splitlines()[2:]]
    table = {row[0]: row[1:] for row in rows}
    assert {"first 64 tokens", "first 128 tokens", "whole, by windows", "mean of chunks"} < {*table}
    assert float(table["BM25"][0]) > 0.5 and table["first 64 tokens"][5] == "1.0"
    assert float(table["best chunk"][5]) > 3  # vectors of an article
    assert sum(name.startswith("BM25 + ") for name in table) == 5
    assert int(table["questions"][1]) < int(table["questions"][0])  # most begin after token 512
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "vectors").iterdir()}
    again = example(search, made, *flags)
    assert {path: path.stat().st_mtime_ns for path in saved} == saved
    assert [line.split("|")[:7] for line in again.splitlines()] == [
        line.split("|")[:7] for line in once.splitlines()
    ]


def test_a_text_of_several_windows_is_the_mean_of_their_tokens(folder):
    model = embed.SentenceTransformer(str(folder))
    model.max_seq_length = 64
    text = "日本の首都は東京です。" * 20
    first, whole = model.encode([text]), model.tokenizer(text)["input_ids"]
    embed.attend_within(model, 64)
    np.testing.assert_allclose(model.encode(["短い", text])[1], first[0], atol=1e-5)
    model.max_seq_length = len(whole)
    states = model.encode(["短い", text], output_value="token_embeddings")
    assert len(whole) > 130 and [len(each) for each in states] == [
        len(model.tokenizer("短い")["input_ids"]),
        len(whole),
    ]


def test_rows_hold_several_questions_of_a_text_around_their_paragraphs(asked):
    paths = [embed.Path(flag.split("=")[1]) for flag in asked]
    pairs = [pair for held, pair in embed.from_questions(*paths, 0.0, 2, 90) if not held]
    assert all("番号" in text and len(text) <= 90 for _, text in pairs)
    assert len({text.index("番号") for _, text in pairs}) > 5, "not always in the same place"
    columns = embed.rows_of([*pairs, ("三つ目", pairs[0][1])], 2)
    assert [*columns] == ["text", "query_0", "query_1"] and len(columns["text"]) == 41
    assert columns["query_0"].count("三つ目") + columns["query_1"].count("三つ目") in (1, 2)
    assert {len(text) for text in zip(*columns.values(), strict=True)} == {3}
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 0.0]])
    assert search.gains(scores, np.array([0, 0])).tolist() == [1, 1 / np.log2(3)]  # a tie counts
    of_chunks = search.Method(scores, 3.0, 1.0, np.array([0, 1]))  # of two articles
    assert of_chunks.of_articles().tolist() == [[3.0, 2.0], [1.0, 1.0]]


def test_an_encoder_is_onnx_and_mteb_judges_it(folder, asked, example, tmp_path):
    for package in ("mteb", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"needs {package} (docs/examples say how)")
    mteb_local, to_onnx = map(importlib.import_module, ("mteb_local", "to_onnx"))
    out = example(to_onnx, folder, f"--output={tmp_path / 'model.onnx'}")
    assert len(re.findall(r"largest difference \d\.\de-0[67] of", out)) == 2
    shown = example(mteb_local, folder, *asked, "--judged=0.5", f"--output={tmp_path / 'out'}")
    assert "LocalRetrieval" in shown and "ndcg_at_10 0." in shown
