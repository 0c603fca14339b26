"""`make-data` by the tokenizer of a Hugging Face folder; the whole road: test_encoder_road.py."""

import json

import pytest

pytest.importorskip("transformers", reason="needs the huggingface extra")

import transformers

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import pipeline
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles
from bigbird_ja.train import hf_folder
from testkit import tokenizer_folders
from tests.commands.pretraining import refused

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As ModernBERT's: padding is id 3,003 of 3,009, with unused ids behind it."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer_folders.byte_level_bpe(path, list(articles.documents(40, seed=5)))
    return path


@pytest.fixture(scope="module")
def made(folder, sample_corpus, tmp_path_factory, run_cli):
    """A data set by that tokenizer, and what `make-data` printed."""
    data = f"{tmp_path_factory.mktemp('made')}/data"
    ended = run_cli(
        "make-data", f"--input={sample_corpus}", f"--tokenizer={folder}", f"--output_dir={data}",
        "--seq_length=256", "--eval_fraction=0.1", "--num_workers=1",
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    return data, ended.stderr


def test_padding_and_random_tokens_are_the_tokenizers(made, folder):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    manifest = manifest_lib.load(made[0])
    assert manifest.pad_id == theirs.pad_token_id > 0
    drawn = {theirs.convert_ids_to_tokens(int(i)) for i in manifest.rule().ordinary_ids()}
    assert not drawn & {*theirs.all_special_tokens, "[unused0]", "[unused1]"}
    batch = next(iter(pipeline.eval_batches(manifest, made[0], batch_size=64)))
    ids = batch["input_ids"].numpy()
    assert (ids[:, 0] == theirs.cls_token_id).any() and (ids[-1] == theirs.pad_token_id).all()
    assert ((batch["document_ids"].numpy() == 0) == (ids == theirs.pad_token_id)).all()


def test_another_padding_and_a_folder_without_a_tokenizer_are_refused(
    folder, sample_corpus, tmp_path, capsys
):
    make = ["make-data", f"--input={sample_corpus}", f"--output_dir={tmp_path}/x"]
    refused([*make, f"--tokenizer={folder}", "--set=make_data.pad_id=3"], capsys, "pad_id")
    refused([*make, f"--tokenizer={tmp_path}"], capsys, "no tokenizer in this folder")
    assert not (tmp_path / "x").exists()


def test_embeddings_that_are_too_few_are_refused(made, folder):
    (folder / "model.safetensors").touch()
    config = {"model_type": "modernbert", "hidden_size": 32}
    manifest = manifest_lib.load(made[0])
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 3008}))
    with pytest.raises(BadInput, match=r"embeddings of 3,008 pieces .* ids up to 3,008"):
        hf_folder.adopted_settings(str(folder), None, manifest)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 3072}))
    adopted = hf_folder.adopted_settings(str(folder), None, manifest)
    assert ("model.vocab_size", 3072) in [(o.key, o.value) for o in adopted]
