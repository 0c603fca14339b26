from __future__ import annotations

import json
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.cli import main
from bigbird_ja.data import manifest as manifest_lib
from tests.data import making

SMALL = [
    "--seq_length=128", "--max_predictions_per_seq=20", "--num_shards=4", "--num_workers=1",
    "--eval_fraction=0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(sample_corpus, tokenizer_path):
    return [f"--input={sample_corpus}", f"--tokenizer={tokenizer_path}"]


def test_results_repetition_and_other_settings(tmp_path, inputs, run_cli):
    command = ["make-data", *inputs, *SMALL, f"--output_dir={tmp_path / 'data'}", "--json"]
    first = run_cli(*command)
    assert first.status == 0, first.stderr
    result = first.json
    promised = "documents tokens sequences shards density mean_predictions seconds"
    assert set(promised.split()) <= set(result)
    assert result["documents"] == 60 and result["shards"] == 5 and result["density"] > 0.97
    assert 15 < result["mean_predictions"] <= 20
    before = making.digests(str(tmp_path / "data"))
    again = run_cli(*command)
    assert again.status == 0 and "finished already" in again.stderr
    assert making.digests(str(tmp_path / "data")) == before
    other = run_cli(*command, "--seed=9")
    assert other.status == 2 and "--seed (12345 there, 9 requested)" in other.stderr
    assert other.json["reason"] == "bad_input" and len(other.stderr.strip().splitlines()) < 12
    assert making.digests(str(tmp_path / "data")) == before


def test_mixed_corpora_are_in_the_results_of_make_data_and_check_data(
    tmp_path, sample_corpus, tokenizer_path, run_cli
):
    lines = Path(sample_corpus).read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("news", lines[:20]), ("books", lines[20:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
    made = run_cli(
        "make-data", f"--input={tmp_path}/news.jsonl=2", f"--input={tmp_path}/books.jsonl",
        f"--tokenizer={tokenizer_path}", *SMALL, f"--output_dir={tmp_path / 'data'}", "--json",
    )  # fmt: skip
    assert made.status == 0, made.stderr
    news, books = made.json["corpora"]
    assert (news["name"], news["weight"], news["documents"]) == ("news.jsonl", 2.0, 36)
    assert (books["name"], books["weight"], books["documents"]) == ("books.jsonl", 1.0, 36)
    assert news["eval_documents"] == 2 and news["share"] + books["share"] == pytest.approx(1)
    assert made.json["train_sequences"] == news["sequences"] + books["sequences"]
    checked = run_cli("check-data", f"--data_dir={tmp_path / 'data'}", "--json")
    assert checked.status == 0 and checked.json["corpora"] == made.json["corpora"]
    for ended in (made, checked):
        assert f"{news['share']:.1%}" in ended.stderr and "books.jsonl" in ended.stderr


@pytest.mark.parametrize(
    "change,says",
    [
        (["--tokenizer=/nowhere/x.model"], "/nowhere/x.model"),
        (["--max_predictions_per_seq=500"], "max_predictions_per_seq"),
        (["--input_mask"], "input_mask"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, inputs, change, says, capsys):
    output = tmp_path / "data"
    command = ["make-data", *inputs, *SMALL, f"--output_dir={output}", *change, "--json"]
    assert main.run_command_line(command) == 2
    captured = capsys.readouterr()
    last = captured.err.strip().splitlines()[-1]
    assert last.startswith("bigbird-ja: ") and says in last
    assert json.loads(captured.out)["reason"] == "bad_input"
    assert not output.exists()


def test_a_model_that_differs_from_its_record_is_refused(tmp_path, inputs, run_cli):
    given = Path(inputs[1].removeprefix("--tokenizer="))
    for suffix in (".model", ".json"):
        (tmp_path / f"ja{suffix}").write_bytes(given.with_suffix(suffix).read_bytes())
    data = bytearray((tmp_path / "ja.model").read_bytes())
    data[len(data) // 2] ^= 1  # still a model, but another one
    (tmp_path / "ja.model").write_bytes(data)
    command = ["make-data", inputs[0], f"--tokenizer={tmp_path}/ja.model", *SMALL]
    ended = run_cli(*command, f"--output_dir={tmp_path / 'data'}")
    assert ended.status == 2 and "ja.model: not the model that" in ended.stderr, ended.stderr
    assert not (tmp_path / "data").exists()


def test_to_a_bucket_and_from_it(bucket, fake_gcs, inputs, run_cli, tmp_path):
    source = storage.join(bucket, "corpus.jsonl")
    storage.write_bytes(source, Path(inputs[0].split("=", 1)[1]).read_bytes())
    output = storage.join(bucket, "data")
    environ = {**fake_gcs.environ(), "XDG_CACHE_HOME": str(tmp_path)}
    ended = run_cli(
        "make-data", f"--input={source}", inputs[1], *SMALL, f"--output_dir={output}", "--json",
        env=environ,
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    names = storage.list_files(output)
    assert "manifest.json" in names and len(names) == 3 + ended.json["shards"]
    assert list(tmp_path.rglob("*.block")) == []


def test_mecab_boundaries(tmp_path, inputs, capsys):
    pytest.importorskip("fugashi")
    command = ["make-data", *inputs, *SMALL, "--word_boundaries=mecab", "--nsp"]
    assert main.run_command_line([*command, f"--output_dir={tmp_path / 'data'}"]) == 0


@pytest.mark.parametrize(
    ("flags", "what_would_do"),
    [
        (["--seq_length=1000"], ["896", "1024", "model.attention_type=original_full"]),
        (["--config=tiny-cpu", "--seq_length=1000"], ["992", "1024"]),
    ],
)
def test_a_length_that_no_model_can_be_trained_on_is_refused(
    flags: list[str], what_would_do: list[str], sample_corpus: str, tokenizer_path: str,
    tmp_path: Path, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    inputs = [f"--input={sample_corpus}", f"--tokenizer={tokenizer_path}"]
    output = tmp_path / "data"
    assert main.run_command_line(["make-data", *inputs, f"--output_dir={output}", *flags]) == 2
    printed = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(words in printed for words in what_would_do) and not output.exists()


def test_parquet_and_a_tokenizer_of_ones_own_make_what_jsonl_makes(
    tmp_path, sample_corpus, run_cli
):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the arrow extra")
    from pyarrow import parquet

    from tests.text.test_model_proto import train

    tokenizer = tmp_path / "own.model"
    tokenizer.write_bytes(train(sample_corpus, pad_id=3))  # <unk>, <s>, </s>, <pad>, no mask
    rows = [json.loads(line) for line in Path(sample_corpus).read_text("utf-8").splitlines()]
    table = pyarrow.table({"body": [row["text"] for row in rows]})
    parquet.write_table(table, tmp_path / "corpus.parquet")
    made = {}
    for name, given in (
        ("jsonl", [f"--input={sample_corpus}"]),
        ("parquet", [f"--input={tmp_path / 'corpus.parquet'}", "--text_field=body"]),
    ):
        output = tmp_path / name
        ended = run_cli(
            "make-data", *given, f"--tokenizer={tokenizer}", f"--output_dir={output}", *SMALL
        )
        assert ended.status == 0, ended.stderr
        assert "[MASK]" in ended.stderr  # what was added to the tokenizer is said
        manifest = manifest_lib.load(str(output))
        shards = {k: v for k, v in making.digests(str(output)).items() if k.endswith(".tfrecord")}
        made[name] = shards, manifest.special_ids, manifest.documents
    assert len(made["jsonl"][0]) == 5 and made["jsonl"] == made["parquet"]
    assert made["jsonl"][1]["pad"] == 0 and made["jsonl"][2] == 60
