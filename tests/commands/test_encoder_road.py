"""From an encoder that somebody made to one that is fine-tuned: `make-data --tokenizer FOLDER`,
`pretrain --init_from FOLDER`, `evaluate`, `export`, docs/examples/finetune.py; nightly on text."""

import hashlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data import pipeline
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.train import hf_folder
from testkit import ROOT, runs
from tests.data import making

torch = pytest.importorskip("torch", reason="the encoders are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders  # noqa: E402 - it imports transformers

pytestmark = pytest.mark.timeout(1800)
Run = Callable[..., Any]
_SETTINGS = (
    "--set=training.dtype=float32 --set=training.global_batch_size=8 --set=training.warmup_steps=5"
    " --set=checkpoints.save_every_steps=100000 --set=model.attend_across_documents=true"
)


def save_encoder(kind, folder, head="ForMaskedLM", **sizes):
    """A small model of random weights beside the folder's tokenizer; its embeddings have more rows
    than that has pieces, as many that are published do."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for part in ("pad", "cls", "sep", "bos", "eos"):
        sizes[f"{part}_token_id"] = getattr(tokenizer, f"{part}_token_id")
    sizes |= {"vocab_size": 3072, "hidden_size": 64, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 96}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    torch.manual_seed(3)
    model = getattr(transformers, kind + head)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        if kind == "Roberta":  # as in all that were trained: the padding's row is zero
            model.roberta.embeddings.word_embeddings.weight[tokenizer.pad_token_id] = 0
    model.save_pretrained(folder)


def checked(ended):
    assert ended.status == 0, ended.stderr[-3000:]
    return ended


def make_data(run_cli, text, tokenizer, data, length, held):
    sizes = (f"--seq_length={length}", f"--eval_fraction={held}")
    places = (text, f"--tokenizer={tokenizer}", f"--output_dir={data}")
    checked(run_cli("make-data", *places, *sizes, timeout=900))


def go_on(run_cli, data, model, source, steps, *more):
    """Trains from a folder's weights; the held-out loss before the first step."""
    flags = [f"--data_dir={data}", f"--model_dir={model}", f"--init_from={source}"]
    flags += [f"--num_train_steps={steps}", f"--set=training.eval_every_steps={steps}"]
    flags += ["--mode=train_and_eval", runs.ENGINE, *_SETTINGS.split(), *more]
    ended = checked(run_cli("pretrain", *flags, timeout=3000))
    if json.loads((source / "config.json").read_text())["model_type"] in ("bert", "roberta"):
        assert "again" in re.search("attention: full, .*`export` makes a .*", ended.stderr)[0]
    first = json.loads((model / "eval.jsonl").read_text().splitlines()[0])
    assert first["step"] == 0
    return float(first["masked_lm_loss"])


def transformers_loss(folder, data):
    """What the folder's own class computes for the same records."""
    manifest = manifest_lib.load(str(data))
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    losses = []
    for batch in pipeline.eval_batches(manifest, str(data), batch_size=8):
        ids = torch.from_numpy(batch["input_ids"].numpy().astype(np.int64))
        places = torch.from_numpy(batch["masked_lm_positions"].numpy().astype(np.int64))
        truth = torch.from_numpy(batch["masked_lm_ids"].numpy().astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=(ids != manifest.pad_id).long()).logits
        rows = torch.arange(len(ids))[:, None]
        scores = torch.log_softmax(logits[rows, places], dim=-1)
        there = batch["masked_lm_weights"].numpy() > 0
        losses.append(-scores.gather(-1, truth[..., None])[..., 0].numpy()[there])
    return float(np.concatenate(losses).mean())


@pytest.fixture(scope="module")
def roberta_data(tmp_path_factory, sample_corpus, run_cli):
    """A folder with RoBERTa's tokenizer, whose padding is id 1, and a data set made by it."""
    path = tmp_path_factory.mktemp("kinds")
    tokenizer_folders.roberta_bpe(path / "tokenizer", list(articles.documents(40, seed=5)))
    text = f"--input={sample_corpus}"
    make_data(run_cli, text, path / "tokenizer", path / "data", 128, "0.2")
    return path / "tokenizer", path / "data"


def test_padding_and_random_tokens_are_the_tokenizers(roberta_data):
    theirs = transformers.AutoTokenizer.from_pretrained(roberta_data[0])
    manifest = manifest_lib.load(str(roberta_data[1]))
    assert manifest.pad_id == theirs.pad_token_id > 0
    drawn = {theirs.convert_ids_to_tokens(int(i)) for i in manifest.rule().ordinary_ids()}
    assert drawn and not drawn & {*theirs.all_special_tokens}
    batch = next(iter(pipeline.eval_batches(manifest, str(roberta_data[1]), batch_size=64)))
    ids = batch["input_ids"].numpy()
    assert (ids[:, 0] == theirs.bos_token_id).any()
    assert ((batch["document_ids"].numpy() == 0) == (ids == theirs.pad_token_id)).all()


def test_embeddings_that_are_too_few_are_refused(roberta_data, tmp_path):
    folder = shutil.copytree(roberta_data[0], tmp_path / "folder")
    (folder / "model.safetensors").touch()
    manifest = manifest_lib.load(str(roberta_data[1]))
    config = {"model_type": "modernbert", "hidden_size": 32, "vocab_size": manifest.vocab_size - 1}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"embeddings of .* tokens .* ids up to "):
        hf_folder.adopted_settings(str(folder), None, manifest, str(roberta_data[1]))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 9000}))
    adopted = hf_folder.adopted_settings(str(folder), None, manifest, str(roberta_data[1]))
    assert ("model.vocab_size", 9000) in [(o.key, o.value) for o in adopted]


BLOCKED = """
import json, sys
for name in ("transformers", "tokenizers"):
    sys.modules[name] = None
from bigbird_ja import cli
for words in json.loads(sys.argv[1]):
    if status := cli.run_command_line(words):
        sys.exit(status)
"""


def test_a_machine_that_trains_needs_no_package_of_hugging_face(roberta_data, tmp_path):
    data, model = f"--data_dir={roberta_data[1]}", f"--model_dir={tmp_path}/model"
    steps = ["--num_train_steps=2", "--mode=train_and_eval", runs.ENGINE, *runs.SETTINGS]
    commands = [["pretrain", data, model, *steps], ["evaluate", data, model, "--max_batches=1"]]
    program = [sys.executable, "-c", BLOCKED, json.dumps(commands)]
    ended = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    last = json.loads((tmp_path / "model/eval.jsonl").read_text().splitlines()[-1])
    assert last["bits_per_character"] > 0
    assert all(example["truth"] for example in last["examples"]) and len(last["examples"]) == 3


def test_data_of_another_tokenizer_is_refused(roberta_data, small_run, tmp_path):
    """Rows of the embeddings stood for other words, and it trained."""
    folder = shutil.copytree(roberta_data[0], tmp_path / "folder")
    (folder / "model.safetensors").touch()
    config = {"model_type": "modernbert", "hidden_size": 32, "vocab_size": 9000}
    (folder / "config.json").write_text(json.dumps(config))
    other = small_run.data_dir
    with pytest.raises(BadInput, match=f"other words: .* make-data --tokenizer {folder}"):
        hf_folder.adopted_settings(str(folder), None, manifest_lib.load(other), other)


@dataclass(frozen=True)
class Size:
    """How much of the road is gone."""

    megabytes: float  # of text that the encoder goes on with
    length: int
    steps: int
    seeds: int
    encoder_steps: int  # on other text, a quarter of the length; 0: random weights


_NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(6 * 3600)]
_SIZES = {"a share": Size(0.3, 128, 40, 1, 0), "20 MB": Size(20, 512, 100, 2, 200)}


@pytest.mark.parametrize(
    "size",
    [pytest.param(s, id=i, marks=_NIGHTLY if s.encoder_steps else []) for i, s in _SIZES.items()],
)
def test_the_road(size, request, run_cli, tmp_path):
    texts = articles.documents(2000, seed=6)
    if size.encoder_steps:
        texts = open_corpus([request.getfixturevalue("real_text_path")]).texts()
    earlier = list(itertools.islice(texts, 300))  # what the encoder and its tokenizer know
    share, left = [], int(size.megabytes * 1e6)
    for text in texts:
        share.append(text)
        left -= len(text.encode())
        if left < 0:
            break
    folder, data = tmp_path / "encoder", tmp_path / "data"
    tokenizer_folders.byte_level_bpe(folder, earlier[:60])
    save_encoder("ModernBert", folder, local_attention=64, max_position_embeddings=4 * size.length)
    random = folder
    if size.encoder_steps:
        folder = trained_before(run_cli, tmp_path, folder, earlier, size)
    corpus = f"--input={making.write_corpus(tmp_path / 'share.jsonl', share)}"
    make_data(run_cli, corpus, folder, data, size.length, "0.02")
    expected = transformers_loss(folder, data)
    for seed in range(size.seeds):
        losses = []
        for source in dict.fromkeys((folder, random)):
            model = tmp_path / f"{source.name}-{seed}"
            sets = [f"--set={room}.seed={seed}" for room in ("training", "data")]
            sets.append("--set=training.learning_rate=2e-3")
            before = go_on(run_cli, data, model, source, size.steps, *sets)
            flags = [f"--model_dir={model}", f"--data_dir={data}", "--json"]
            after = checked(run_cli("evaluate", *flags, timeout=900)).json["masked_lm_loss"]
            losses.append((before, after))
            print(f"seed {seed}, from {source.name}: {before:.4f} before, {after:.4f} after")
        (before, after), *scratch = losses
        assert before == pytest.approx(expected, abs=1e-3)
        assert after < before - 0.02 and all(after < other for _, other in scratch)
    exported(run_cli, tmp_path / f"{folder.name}-0", data, tmp_path / "hf")
    if size.encoder_steps:
        fine_tunes(tmp_path / "hf", share)
    card = (tmp_path / "hf" / "README.md").read_text()
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert "\nbase_model:" not in card and f"`{checksum}`" in card  # the source has no name


def trained_before(run_cli, path, folder, texts, size):
    """The encoder after some training on other, shorter sequences, saved by transformers."""
    corpus, data = making.write_corpus(path / "earlier.jsonl", texts), path / "earlier"
    make_data(run_cli, f"--input={corpus}", folder, data, size.length // 4, "0.02")
    model, exported, saved = path / "earlier-model", path / "earlier-hf", path / "published"
    sets = ("--set=training.learning_rate=2e-3", "--set=training.global_batch_size=16")
    go_on(run_cli, data, model, folder, size.encoder_steps, *sets)
    checked(run_cli("export", f"--model_dir={model}", f"--output_dir={exported}"))
    transformers.AutoModelForMaskedLM.from_pretrained(exported).save_pretrained(saved)
    transformers.AutoTokenizer.from_pretrained(exported).save_pretrained(saved)
    return saved


def exported(run_cli, model, data, folder):
    """`export` gives what transformers' own class loads whole."""
    places = (f"--model_dir={model}", f"--data_dir={data}", f"--output_dir={folder}")
    checked(run_cli("export", *places, timeout=900))
    report = json.loads((folder / "parity_report.json").read_text())
    assert report["tokenizer"]["agrees"] and report["scores"]["agrees"]
    fill = transformers.pipeline("fill-mask", model=str(folder))
    assert fill(f"この城は{fill.tokenizer.mask_token}である。")
    config = transformers.AutoConfig.from_pretrained(folder)
    length = json.loads((data / "manifest.json").read_text())["seq_length"]
    assert config.max_position_embeddings == 4 * length, "the source's, not the data's"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for part in ("pad", "cls", "sep"):
        assert getattr(config, f"{part}_token_id") == getattr(theirs, f"{part}_token_id")
    loaded, info = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert type(loaded) is transformers.ModernBertForMaskedLM
    assert not info["missing_keys"] and not info["unexpected_keys"]


def fine_tunes(folder, texts):
    """The example fine-tunes the exported folder."""
    rows = [{"text": text[:400], "label": "寺" if "寺" in text else "他"} for text in texts[:24]]
    (folder.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [sys.executable, str(ROOT / "docs/examples/finetune.py"), "classification"]
    words += [f"--model={folder}", "--data=rows.jsonl", "--output=tuned", "--epochs=1"]
    tuned = subprocess.run(words, capture_output=True, text=True, cwd=folder.parent)
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    assert np.isfinite(json.loads(tuned.stdout.splitlines()[-1])["eval_loss"])
