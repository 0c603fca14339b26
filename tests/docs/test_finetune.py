"""The examples finetune.py and benchmark.py, with an exported model and invented data."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from bigbird_ja.text import articles
from testkit import ROOT, command_line

torch = pytest.importorskip("torch", reason="fine-tuning needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders  # noqa: E402 - this module imports transformers

sys.path.insert(0, str(ROOT / "docs/examples"))
finetune, benchmark = map(importlib.import_module, ("finetune", "benchmark"))


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    """Return a folder that `export` wrote."""
    folder = str(tmp_path_factory.mktemp("exported") / "hf")
    flags = (f"--model_dir={small_run.model_dir}", f"--output_dir={folder}")
    ended = command_line.run_cli("export", *flags)
    assert ended.status == 0, ended.stderr
    return folder


def write_rows(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    return path


def rows(task, corpus):
    """Return rows for a task, most of whose texts are longer than the model's 256 tokens."""
    lines = Path(corpus).read_text("utf-8").splitlines()[:20]
    texts = [json.loads(line)["text"] + "\u2028" for line in lines]
    if task == "classification":
        return [{"text": t, "label": "年" if t.count("年") > 10 else "他"} for t in texts]
    if task == "ner":
        found = [[i, i + 1, "時"] for i, c in enumerate(texts[0]) if c == "年"]
        return [{"text": texts[0], "entities": found}] * 20
    question = "何について書かれていますか。"
    return [{"question": question, "context": t, "answer": t.split("\n")[2]} for t in texts]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("task", "loads"),
    [
        ("classification", "AutoModelForSequenceClassification"),
        ("ner", "AutoModelForTokenClassification"),
        ("qa", "AutoModelForQuestionAnswering"),
    ],
)
def test_the_example_fine_tunes_the_trained_attention_of_an_exported_model(
    task, loads, exported, sample_corpus, tmp_path, example
):
    data = write_rows(tmp_path / "data.jsonl", rows(task, sample_corpus))
    output = tmp_path / "tuned"
    flags = ("--epochs", 1, "--learning_rate", "1e-3", "--trust_remote_code")
    places = ("--model", exported, "--data", data, "--output", output)
    printed = example(finetune, task, *places, *flags)
    result = json.loads(printed.splitlines()[-1])
    measured = result["eval_f1" if task == "ner" else "eval_accuracy"]
    assert math.isfinite(result["eval_loss"]) and 0 <= measured <= 1
    tuned = getattr(transformers, loads).from_pretrained(output, trust_remote_code=True)
    assert type(tuned).__name__.startswith("BigBirdJa")
    before = transformers.AutoModel.from_pretrained(exported).state_dict()
    after = tuned.base_model.state_dict()
    name = "embeddings.word_embeddings.weight"
    assert not before[name].equal(after[name])
    ids = transformers.AutoTokenizer.from_pretrained(output)("東京")["input_ids"]
    assert ids == transformers.AutoTokenizer.from_pretrained(exported)("東京")["input_ids"]


def test_entities_are_of_whole_tokens_and_measured_whole(tmp_path):
    folder = tmp_path / "bert"
    tokenizer_folders.wordpiece(folder, list(articles.generate(20, seed=5)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    row = {"text": "東京と京都の城", "entities": [[0, 2, "地"], [3, 5, "地"], [6, 7, "物"]]}
    path = write_rows(tmp_path / "ner.jsonl", [row])
    (example,), config = finetune.entities(path, tokenizer)
    names = config["id2label"] | {finetune.IGNORED: "-"}
    expected = ["-", "B-地", "I-地", "O", "B-地", "I-地", "O", "B-物", "-"]
    assert [names[i] for i in example.target] == expected
    assert finetune.f1([example.target], [example]) == 1
    # Without its first token, an entity begins with I- and does not count as found.
    second = [0 if i == 4 else c for i, c in enumerate(example.target)]
    assert finetune.f1([second], [example]) == pytest.approx(2 / 3)
    assert finetune.f1([[0] * 9], [example]) == 0
    write_rows(path, [{"text": "城", "entities": [[0, 2, "物"]]}])
    with pytest.raises(SystemExit, match=r"row 1: the text has no characters 0 to 2 \(物\)"):
        finetune.entities(path, tokenizer)


def test_code_in_a_folder_runs_only_where_it_is_trusted(exported):
    with pytest.raises(SystemExit, match=r"modeling_bigbird_ja\.py: read it, then add"):
        finetune.check_code(exported, None)
    assert finetune.check_code(exported, True) and not finetune.check_code(exported, False)


def test_missing_files_and_lines_without_an_object_are_named(tmp_path):
    with pytest.raises(SystemExit, match="is no folder of a model"):
        finetune.check_code(str(tmp_path), None)
    with pytest.raises(SystemExit, match="no such file"):
        finetune.read_rows(tmp_path / "data.jsonl")
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n[1]\n', "utf-8")
    with pytest.raises(SystemExit, match=r"data\.jsonl, line 2: not a JSON object"):
        finetune.read_rows(tmp_path / "data.jsonl")


def test_fine_tuning_learns_a_target_that_one_token_determines(exported):
    """Learn a class, a number and a choice, each of which one token of the text determines."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    texts = [tokenizer(text) for text in ("東京は年です", "大阪は月です")]
    for target, encodings, outputs in (
        (lambda i: i, lambda i: [texts[i]], 2),
        (lambda i: 4.0 * i, lambda i: [texts[i]], 1),
        (lambda i: i, lambda i: [texts[i], texts[1 - i]], 1),
    ):
        examples = [finetune.Example(encodings(i), target(i)) for i in (0, 1)] * 8
        kind = transformers.AutoModelForSequenceClassification
        transformers.set_seed(0)
        model = finetune.load(kind, exported, trust=True, num_labels=outputs)
        before, _ = finetune.predict(model, tokenizer, examples, batch_size=3)
        finetune.fit(model, tokenizer, examples, finetune.Settings(20, 3e-3, 4))
        after, answers = finetune.predict(model, tokenizer, examples, batch_size=3)
        assert after < 0.8 * before
        np.testing.assert_allclose(answers, [e.target for e in examples], atol=1.5)


def downstream(folder):
    """Write a few invented rows for each task of the benchmark."""
    folder.mkdir()
    for name, task in benchmark.TASKS.items():
        for file in (task.train, *task.tests.values()):
            rows = []
            for i in range(6):
                label = benchmark.JSICK_LABELS[i % 3] if name == "jsick" else i % 2
                row = {"sentence": f"{i}年", "sentence1": f"{i}年", "sentence2": "東京"}
                if name == "jcommonsenseqa":
                    row = {"question": "何", "choices": list("一二三四五")}
                rows.append({**row, "label": label})
            write_rows(folder / f"{file}.jsonl", rows)
    return folder


@pytest.mark.timeout(1200)
def test_the_benchmark_continues_after_an_interruption_with_the_same_scores(
    exported, tmp_path, example
):
    kept = tmp_path / "scores.json"
    call = (benchmark, exported, "--data", downstream(tmp_path / "data"), "--output", kept)
    call += ("--epochs", 1, "--trust_remote_code")
    table = example(*call, "--seeds", 1)
    assert "| hf | " in table and "JSTS, Spearman" in table and "±" not in table
    whole = json.loads(kept.read_text("utf-8"))
    interrupted = json.loads(kept.read_text("utf-8"))
    del interrupted["models"]["hf"]["scores"]["jsick"]
    kept.write_text(json.dumps(interrupted), "utf-8")
    assert example(*call, "--seeds", 1) == table and json.loads(kept.read_text("utf-8")) == whole
    random = example(*call, "--random_weights", "--task", "jsts", "--seeds", 2)
    assert "| hf (random weights) | " in random and "±" in random
    with pytest.raises(SystemExit, match="choose another --output"):
        example(*call, "--learning_rate", "1e-3")
    other = {"model": "of other weights", "scores": {}}
    kept.write_text(json.dumps({**whole, "models": {"hf": other}}), "utf-8")
    with pytest.raises(SystemExit, match="scores of another hf"):
        example(*call)


def published(folder):
    """Write files with the names and columns that the publishers of the benchmark's tasks use."""
    glue, acceptability, inference = (folder / name for name in ("JGLUE", "JCoLA", "JSICK"))
    pair = {"sentence1": "犬が走る", "sentence2": "猫", "label": 1.5, "yjcaptions_id": "1"}
    choices = {f"choice{i}": text for i, text in enumerate("一二三四五")}
    for part in ("train", "valid"):
        for name, row in (("jsts", pair), ("jcommonsenseqa", {"question": "何", "label": 3})):
            (place := glue / f"datasets/{name}-v1.3").mkdir(parents=True, exist_ok=True)
            more = {} if name == "jsts" else choices
            write_rows(place / f"{part}-v1.3.json", [{**row, **more}])
    (place := acceptability / "data/jcola-v1.0").mkdir(parents=True)
    for name in ("in_domain_train-v1.0.jsonl", "in_domain_valid-v1.0.json"):
        write_rows(place / name, [{"uid": 1, "sentence": "走る", "label": 1, "diacritic": "*"}])
    for name in ("out_of_domain_valid", "out_of_domain_valid_annotated"):
        write_rows(place / f"{name}-v1.0.json", [{"sentence": name, "label": 0}])
    columns = ["pair_ID", "sentence_A_En", "sentence_A_Ja", "sentence_B_Ja", "entailment_label_Ja"]
    (place := inference / "jsick").mkdir(parents=True)
    for part in ("train", "test"):
        lines = [columns, ["1", "A dog", '犬が"走る"', "猫", "neutral"]]
        (place / f"{part}.tsv").write_text("".join("\t".join(x) + "\n" for x in lines), "utf-8")
    return folder


def test_the_benchmark_reads_files_as_their_publishers_name_them(tmp_path):
    """Read the published file names, which an earlier version of the example did not accept."""
    data = published(tmp_path)
    targets, texts = {}, {}
    for task in benchmark.TASKS.values():
        for file in (task.train, *task.tests.values()):
            (made,) = benchmark.encode(task, lambda *texts: {"input_ids": texts}, data, file)
            targets[file] = made.target
            texts[file] = [each["input_ids"] for each in made.encodings]
    assert targets["jsts-train"] == 1.5 and targets["jcommonsenseqa-valid"] == 3
    assert targets["jcola-in_domain_valid"] == 1 and targets["jsick-test"] == 2
    assert texts["jcola-out_of_domain_valid"] == [("out_of_domain_valid",)]
    assert texts["jsick-train"] == [('犬が"走る"', "猫")]
    assert texts["jcommonsenseqa-train"] == [("何", choice) for choice in "一二三四五"]


def test_measures_are_those_of_scipy_and_numpy():
    from scipy import stats

    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 5, 50).astype(float), draw.normal(size=50)
    measures = benchmark.MEASURES
    assert measures["Pearson"](one, other) == pytest.approx(stats.pearsonr(one, other)[0])
    assert measures["Spearman"](one, other) == pytest.approx(stats.spearmanr(one, other)[0])
    answers, targets = draw.integers(0, 2, (2, 40))
    assert measures["accuracy"](answers, targets) == np.mean(answers == targets)
    assert measures["MCC"](np.ones(40), targets) == 0
