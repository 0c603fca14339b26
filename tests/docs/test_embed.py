"""The embedding example at toy size: training, going on, the table, and what it refuses."""

import importlib
import sys

import pytest

from bigbird_ja.text import articles
from testkit import ROOT, tokenizer_folders
from tests.data import making
from tests.huggingface import folders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
for package in ("sentence_transformers", "datasets", "bm25s"):
    pytest.importorskip(package, reason=f"needs {package} (docs/examples/embed.py says how)")
sys.path.insert(0, str(ROOT / "docs/examples"))
embed = importlib.import_module("embed")


@pytest.fixture
def folder(tmp_path):
    """Return an encoder of random weights."""
    tokenizer_folders.byte_level_bpe(tmp_path / "encoder", list(articles.generate(40, seed=5)))
    folders.save_encoder("ModernBert", tmp_path / "encoder", max_position_embeddings=2048)
    return tmp_path / "encoder"


@pytest.fixture
def corpus(tmp_path):
    """Write articles with titles of their own, in Wiki40b's layout."""
    path = tmp_path / "wiki.jsonl"
    making.write_corpus(path, articles.generate(60, seed=8, mean_length=600))
    return path


def test_an_embedder_is_trained_goes_on_and_is_set_beside_bm25(
    folder, corpus, tmp_path, monkeypatch, example
):
    flags = [f"--corpus={corpus}", "--max_tokens=1024"]
    monkeypatch.setattr(embed, "BOUNDS", (64, 1024))
    words = [f"--output={tmp_path / 'made'}", "--batch_size=8", "--learning_rate=1e-3"]
    printed = example(embed, folder, *flags, *words)
    table = printed[printed.index("| tokens") :]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    found = {(row[0], row[2]): [float(value) for value in row[3:]] for row in rows}
    assert {name for _, name in found} == {"embedder", "its first 512 tokens", "BM25"}
    assert found["all", "BM25"][1] > 0.9  # titles stand in their articles
    for recall_1, recall_10, gain in found.values():
        assert 0 <= recall_1 <= gain <= recall_10 <= 1
    assert example(embed, tmp_path / "made", *flags, "--epochs=0").endswith(table)


def test_a_model_of_few_positions_cuts_documents_and_keeps_its_prompts(
    tmp_path, corpus, monkeypatch, capsys
):
    """Documents longer than its positions ended in a traceback of torch's."""
    tokenizer_folders.wordpiece(tmp_path / "bert", list(articles.generate(40, seed=5)))
    folders.save_encoder("Bert", tmp_path / "bert", max_position_embeddings=64)
    words = [f"--corpus={corpus}", f"--output={tmp_path / 'made'}", "--epochs=0.5"]
    words += ["--query_prompt=query: ", "--text_prompt=passage: ", "--batch_size=4"]
    monkeypatch.setattr(sys, "argv", ["embed", str(tmp_path / "bert"), *words])
    embed.main()
    printed = capsys.readouterr()
    assert "documents are cut at 64 tokens" in printed.err and "Batches" in printed.err
    made = embed.SentenceTransformer(str(tmp_path / "made"))
    assert made.prompts["query"] == "query: " and made.prompts["document"] == "passage: "
    embed.set_prompts(made, None, "")
    assert made.prompts["query"] == "query: " and made.prompts["document"] == ""


def test_the_mean_of_weights_before_and_after_is_saved_also_by_a_training_that_goes_on(
    folder, corpus, tmp_path, example
):
    words = [f"--corpus={corpus}", "--max_tokens=64", "--steps=4", "--batch_size=4"]
    words += [f"--output={tmp_path / 'made'}", "--learning_rate=1e-2"]

    def weights(place):
        return embed.SentenceTransformer(str(place)).state_dict()

    example(embed, folder, *words)
    before, after = weights(folder), weights(tmp_path / "made")
    example(embed, folder, *words, "--source_share=0.25")  # trained before: only the mean is taken
    mean = weights(tmp_path / "made")
    assert any((before[name] - after[name]).abs().max() > 1e-3 for name in before)
    for name, value in mean.items():
        expected = 0.25 * before[name] + 0.75 * after[name]
        embed.torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("flag", ["--together=0", "--window=-1", "--batch_size=x", "--steps=-2"])
def test_a_number_out_of_range_is_refused(flag, corpus, monkeypatch, capsys):
    """`--together=0` ended in a traceback."""
    monkeypatch.setattr(sys, "argv", ["embed", "nowhere", f"--corpus={corpus}", flag])
    with pytest.raises(SystemExit) as ended:
        embed.main()
    assert ended.value.code == 2 and "needs a whole number from" in capsys.readouterr().err


def test_titles_and_headings_are_asked_for_and_taken_out(tmp_path):
    parts = ["ARTICLE", "銀閣", "PARAGRAPH", "寺である。_NEWLINE_東山。", "SECTION", "歴史"]
    parts += ["PARAGRAPH", "昔。", "SECTION", "庭", "PARAGRAPH", "砂。"]
    text = "".join(f"\n_START_{a}_\n{b}" for a, b in zip(parts[::2], parts[1::2], strict=True))
    path = tmp_path / "one.jsonl"
    making.write_corpus(path, [text])
    body = "寺である。\n東山。\n昔。\n砂。"
    assert [*embed.from_corpus(path, 2)] == [("銀閣 庭", body), ("銀閣 歴史", body)]
    assert [q for q, _ in embed.from_corpus(path, 9)] == ["銀閣 庭", "銀閣 歴史", "銀閣"]
    assert embed.bm25(["砂", "海"], [body, "海。"]).argmax(1).tolist() == [0, 1]  # one character
