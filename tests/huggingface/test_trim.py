"""A trimmed encoder splits a text of kept tokens into the same tokens, with the same weights."""

import importlib.util
import json

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the huggingface extra")

from safetensors.numpy import load_file

from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import trim
from bigbird_ja.text import articles
from testkit import tokenizer_folders

_CONFIGS = {
    "byte-level BPE": "modernbert",
    "RoBERTa's BPE": "roberta",
    "WordPiece": "bert",
    "Gemma's BPE with bytes": "modernbert",
    "Unigram with bytes": "modernbert",
    "XLM-R's unigram": "xlm-roberta",
    "MeCab with WordPiece": "bert",
}
_SIZE = 1500


def tokenizer_in(folder):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=True)
    # Reset the class attribute, which would make later tests save the class's code.
    type(tokenizer)._auto_class = None
    return tokenizer


@pytest.fixture(scope="module")
def texts():
    return list(articles.generate(60, seed=5))


@pytest.fixture
def made(texts, tmp_path):
    """Return a function that writes an encoder with a tokenizer of the given kind.

    The function returns the folder and the weights.
    """

    def make(kind):
        folder = tmp_path / "encoder"
        tokenizer_folders.KINDS[kind](folder, texts[:40])
        return folder, tokenizer_folders.add_weights(folder, _CONFIGS[kind])

    return make


def trimmed(folder, target, texts, size=_SIZE):
    encoder = trim.read_encoder(str(folder))
    trim.check_size(encoder, size)
    result = trim.trim_vocabulary(encoder, texts, size)
    target.mkdir()
    trim.fill(str(target), encoder, result)
    return result


def test_odd_ids_in_the_config_are_left_out(made, texts, tmp_path):
    folder, _ = made("XLM-R's unigram")
    config = json.loads((folder / "config.json").read_text())
    more = {"eos_token_id": [2, 4], "bos_token_id": -1, "cls_token_id": None, "sep_token_id": 10**9}
    (folder / "config.json").write_text(json.dumps(config | more))
    result = trimmed(folder, tmp_path / "trimmed", texts)
    assert result.config["pad_token_id"] == tokenizer_in(tmp_path / "trimmed").pad_token_id == 1


@pytest.mark.parametrize("kind", tokenizer_folders.KINDS)
def test_texts_of_kept_tokens_have_the_same_tokens_and_weights(kind, made, texts, tmp_path):
    if "MeCab" in kind and importlib.util.find_spec("fugashi") is None:
        pytest.skip("needs the words extra")
    folder, weights = made(kind)
    result = trimmed(folder, tmp_path / "trimmed", texts)
    old, new = tokenizer_in(folder), tokenizer_in(tmp_path / "trimmed")
    assert len(new.get_vocab()) <= _SIZE == result.config["vocab_size"]
    assert new.special_tokens_map == old.special_tokens_map
    embeddings, head = tokenizer_folders.WORDS[_CONFIGS[kind]]
    rows = load_file(tmp_path / "trimmed" / "model.safetensors")
    known, equal = set(new.get_vocab()), 0
    for line in (line for text in texts for line in text.split("\n")):
        before, after = old(line)["input_ids"], new(line)["input_ids"]
        names = old.convert_ids_to_tokens(before)
        if known.issuperset(names) and old.unk_token not in names:
            equal += 1
            assert new.convert_ids_to_tokens(after) == names
            for name in (embeddings, head):
                np.testing.assert_array_equal(rows[name][after], weights[name][before])
    assert equal > 100
    assert rows[embeddings].shape == (_SIZE, 8) and rows.keys() == weights.keys()
    unchanged = {name for name in rows if len(rows[name]) != _SIZE}
    assert unchanged and all(np.array_equal(rows[name], weights[name]) for name in unchanged)


def test_share_of_changed_tokens_is_of_held_out_documents(made, texts, tmp_path):
    folder, _ = made("XLM-R's unigram")
    held_out = "".join(chr(0x4E00 + 7 * i) for i in range(300))
    documents = [text for i, text in enumerate(texts * 2) if i < 100]
    documents[19::20] = [held_out] * 5
    result = trimmed(folder, tmp_path / "a", documents)
    assert result.changed > 0.1
    documents[19::20] = [documents[0][:500]] * 5
    assert trimmed(folder, tmp_path / "b", documents, 2900).changed == 0


def test_untrimmable_encoder_is_refused(made, texts, tmp_path):
    folder, _ = made("Unigram with bytes")
    encoder = trim.read_encoder(str(folder))
    for size, words in ((3000, "Give a smaller number"), (100, "special tokens and bytes")):
        with pytest.raises(BadInput, match=words):
            trim.check_size(encoder, size)
    with pytest.raises(BadInput, match="the corpus uses only"):
        trim.trim_vocabulary(encoder, ["犬と猫。"], 2000)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(BadInput, match="a gpt2 model"):
        trim.read_encoder(str(folder))
    tokenizer_folders.add_weights(folder, "modernbert")
    (folder / "model.safetensors").rename(folder / "elsewhere")
    with pytest.raises(BadInput, match=r"no model\.safetensors"):
        trim.read_encoder(str(folder))
    (folder / "elsewhere").rename(folder / "model.safetensors")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match="no tokenizer"):
        trim.read_encoder(str(folder))


def test_trim_writes_a_folder_once(made, texts, tmp_path, capsys):
    from bigbird_ja.cli import run_command_line

    folder, _ = made("WordPiece")
    corpus, target = tmp_path / "corpus.jsonl", tmp_path / "trimmed"
    corpus.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    command = ["trim", f"--encoder={folder}", f"--input={corpus}", f"--output_dir={target}"]
    assert run_command_line([*command, f"--vocab_size={_SIZE}"]) == 0
    assert "1,500 of 3,0" in capsys.readouterr().out
    assert "1,500 of 3,0" in (target / "README.md").read_text()
    assert run_command_line([*command, f"--vocab_size={_SIZE}"]) == 0
    assert "finished already" in capsys.readouterr().err
    assert run_command_line([*command, "--vocab_size=1000"]) == 2
    assert run_command_line([*command, "--vocab_size=5"]) == 2
    assert "special tokens" in capsys.readouterr().err
