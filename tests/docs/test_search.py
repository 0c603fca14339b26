"""The search examples at toy size: training, measurement, queries, and refused input."""

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
    pytest.importorskip(package, reason=f"needs {package} (docs/examples/embed.py says how)")
sys.path.insert(0, str(ROOT / "docs/examples"))
NAMES = ("embed", "judge", "search", "squad")
embed, judge, search, squad = map(importlib.import_module, NAMES)


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a BERT with random weights and 128 positions."""
    tokenizer_folders.wordpiece(tmp_path / "bert", list(articles.generate(40, seed=5)))
    folders.save_encoder("Bert", tmp_path / "bert", max_position_embeddings=128)
    return tmp_path / "bert"


@pytest.fixture
def asked(tmp_path):
    """Write documents and questions. The last paragraph of each document answers two questions.

    Returns:
        The flags --documents and --questions.
    """
    documents, questions = [], []
    for i, text in enumerate(articles.generate(40, seed=8, mean_length=300)):
        plain = re.sub(r"_[A-Z]+_\w*\n?|\n", " ", text) + "。"
        answer = f"番号{i * 7919}の合言葉は、東の海にある島の名前である。" * 5
        place = {"paragraph_start": len(plain), "paragraph_end": len(plain + answer)}
        for query in (f"番号{i * 7919}の合言葉", f"合言葉は{i * 7919}"):
            questions.append({"id": str(i), "query": query, **place})
        documents.append({"id": str(i), "text": plain + answer})
    flags = []
    for name, rows in (("documents", documents), ("questions", questions)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags.append(f"--{name}={path}")
    return flags


def train(example, folder, asked, output, *more):
    """Train by embed.py with toy settings, and return the model."""
    words = ["--held_out=0.4", "--steps=4", "--batch_size=4", "--passage_tokens=40"]
    words += ["--query_prompt=query: ", "--learning_rate=1e-3", f"--output={output}"]
    example(embed, folder, *asked, *words, *more)
    return search.MultiVectorEncoder(str(output))


def test_a_search_is_trained_judged_and_asked(folder, asked, example, tmp_path):
    made = tmp_path / "made"
    model = train(example, folder, asked, made, "--tokens_per_vector=4")
    assert model.prompts == {"query": "query: ", "document": ""}
    assert model[-1].pool_factor == 4 and model[0].document_length == 42
    # transformers 4 cannot load a tokenizer of the class TokenizersBackend.
    tokenizer = json.loads((made / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    # The model card must not quote documents, which may be private.
    assert len((made / "README.md").read_text()) < 500 and not (made / "training").exists()

    cache = f"--cache={tmp_path / 'vectors'}"
    words = [folder, made, *asked, "--judged=0.4", "--passage_tokens=40", cache]
    table = [line.split(" | ") for line in example(judge, *words).splitlines()[4:]]
    rows = {cells[0].removeprefix(f"| {tmp_path}/"): cells[1:] for cells in table}
    assert len(rows) == 1 + 2 * 10 and float(rows["made: passages, BM25"][0]) > 0.5
    assert re.fullmatch(r"[+-]0\.\d{3} \[[+-]0\.\d{3}, [+-]0\.\d{3}\]", rows["made: cosine"][2])
    counts = [float(rows[f"bert: MaxSim, {factor} tokens a vector"][3]) for factor in (1, 8, 16)]
    assert counts[0] > 5 * counts[1] > 7 * counts[2]
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "vectors").rglob("*.npy")}
    (tmp_path / "tasks").mkdir()
    texts = ["東の海にある島の名前", "東の海にある島", "合言葉である"]
    tasks = {"jsts-valid": (5.0, 3.5, 0.5), "jsick-test": ("entailment", "neutral", "neutral")}
    for name, labels in tasks.items():
        rows = zip(texts, labels, strict=True)
        pairs = [{"sentence1": texts[0], "sentence2": t, "label": label} for t, label in rows]
        lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / f"tasks/{name}.jsonl").write_text(lines)
    again, pairs = example(judge, *words, f"--pairs={tmp_path}/tasks").split("\n\n")[1:]
    again = [line.split(" | ") for line in again.splitlines()[2:]]
    # The last column contains measured times, which vary.
    assert [cells[:-1] for cells in again] == [cells[:-1] for cells in table]
    assert pairs.splitlines()[0] == "| | JSTS | JSICK |"
    # The first pair consists of identical texts.
    assert pairs.splitlines()[2].endswith("bert | 1.000 | 0.866 |")
    found = (tmp_path / "vectors").rglob("*.npy")
    assert {path: path.stat().st_mtime_ns for path in found} == saved

    with pytest.raises(SystemExit, match=r"bert contains no jsts-valid\.jsonl"):
        example(judge, *words, f"--pairs={folder}")
    with pytest.raises(SystemExit, match="fewer than two of the judged documents"):
        example(judge, *words, "--hard")  # BM25 answers all questions correctly.

    printed = example(search, made, asked[0], "--query", f"番号{7 * 7919}の合言葉は", cache)
    assert re.match(r"1\. 7 \(\d\.\d\d\)\n   .*合言葉は、東の海", printed)
    assert len(printed.splitlines()) == 6


def test_training_continues_after_an_interrupted_save(
    folder, asked, example, tmp_path, monkeypatch
):
    """Continue from the newest complete checkpoint after an interrupted save."""
    monkeypatch.setattr(embed, "SAVED_EVERY", 1)
    state = importlib.import_module("transformers.trainer").TrainerState
    save = state.save_to_json

    def interrupt(self, path):
        if self.global_step == 3:
            raise KeyboardInterrupt
        save(self, path)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(state, "save_to_json", interrupt)
        train(example, folder, asked, tmp_path / "made")
    assert (tmp_path / "made/training/checkpoint-3").exists()
    resumed = train(example, folder, asked, tmp_path / "made").state_dict()
    once = train(example, folder, asked, tmp_path / "once").state_dict()
    for name in once:
        if "pooler" not in name:  # The pooler is unused, and its weights are random.
            embed.torch.testing.assert_close(resumed[name], once[name], rtol=0, atol=1e-6)


def test_a_document_without_candidates_keeps_its_rank_and_intervals_are_over_documents():
    scores = np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 0.0]])
    assert judge.gains(scores, np.array([0, 0])).tolist() == [
        1,
        1 / np.log2(3),
    ]  # In a tie of two documents, the relevant one has rank 2.
    right = np.repeat(np.arange(50), 20)
    shared = np.repeat(np.random.default_rng(0).normal(size=50), 20)
    low, high = map(float, judge.interval(shared, right).split("[")[1][:-1].split(", "))
    assert high - low > 0.4  # The width would be 0.12 with 1,000 independent questions.


def test_squad_is_converted(tmp_path, example):
    questions = [{"question": "いつ？"}, {"question": "どこ？"}]
    paragraphs = [{"context": "昔。", "qas": []}, {"context": "東の海。", "qas": questions}]
    (tmp_path / "a.json").write_text(
        json.dumps({"data": [{"title": "島", "paragraphs": paragraphs}]})
    )
    printed = example(squad, tmp_path / "a.json", f"--output={tmp_path}")
    assert printed == "1 documents, 2 questions\n"
    (document,) = search.read(tmp_path / "documents.jsonl.gz", "id", "text")
    rows = search.read(tmp_path / "questions.jsonl.gz", "query", "id")
    assert {row["id"] for row in rows} == {document["id"]} == {"0000 島"}
    assert document["text"][rows[1]["paragraph_start"] : rows[1]["paragraph_end"]] == "東の海。"


def test_passages_end_with_a_sentence_and_contain_all_text(folder, asked):
    model = search.load(str(folder), search.flags(None).parse_args(["x", asked[0]]))
    assert model[0].document_length == 128
    text = f"{'銀閣は寺である。' * 30}\n\n{'あ' * 900}"
    passages = search.cut(model, text)
    assert "".join(passages) == text and passages[0].endswith("。")
    assert max(len(model.tokenizer(passage)["input_ids"]) for passage in passages) <= 128


@pytest.mark.parametrize(
    ("module", "words", "reason"),
    [
        (search, "bert --query=x --top=0", "'0' is not a number from 1 to"),
        (search, "none --query=x", "search: none is not the folder of a model"),
        (search, "bert --query=x --passage_tokens=500", "bert reads passages of up to 126 tokens"),
        (search, "bert --query=x --documents=no.jsonl", "search: no.jsonl: no such file"),
        (judge, "bert --questions=bad.jsonl", "bad.jsonl, row 1: has no id"),
        (judge, "bert --questions=bad.jsonl --judged=1.5", "'1.5' is not a number from 0 to 1"),
        (embed, "bert --output=x --steps=-1", "'-1' is not a number from 1 to"),
        (embed, "bert --output=x --batch_size=50", "fewer than --batch_size documents"),
        (embed, "bert --output=bert", "bert contains a model, so name another --output"),
        (squad, "bad.jsonl --output=x", "squad: cannot read bad.jsonl (not in SQuAD's layout)"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    module, words, reason, folder, asked, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (folder / "modules.json").write_text("[]")
    (tmp_path / "bad.jsonl").write_text('{"query": "x"}\n')
    flags = [] if module is squad else asked[: 1 + (module is embed)]
    monkeypatch.setattr(sys, "argv", [module.__name__, *flags, *words.split()])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2 and reason in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "x").exists()
