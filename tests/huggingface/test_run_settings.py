r"""Runs that start from an encoder's folder: their settings, and the commands of such a run.

The commands are `make-data --tokenizer FOLDER`, `pretrain --init_from FOLDER`, `evaluate` and
`export`.

Slow tests cover the layouts of several public encoders. Each tested `config.json` is that of a
published model, but widths, layers and vocabularies are small, and weights are random. To test real
weights, set BIGBIRD_JA_ENCODERS to folders that contain them:

    BIGBIRD_JA_ENCODERS=/encoders/minilm:/encoders/e5 python -m pytest -rP -m slow \
        tests/huggingface/test_run_settings.py
"""

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from bigbird_ja.data import build, check, pipeline
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.evaluation import masked_lm
from bigbird_ja.huggingface import run_settings
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.process.console import table
from bigbird_ja.text import articles
from bigbird_ja.text.folder_tokenizer import FolderTokenizer
from testkit import ROOT, command_line, runs
from tests.data import making

torch = pytest.importorskip("torch", reason="the encoders are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders  # noqa: E402 - this module imports transformers
from tests.huggingface.folders import save_encoder  # noqa: E402

# Class, tokenizer, and keys of config.json (as transformers 4 writes it) for public encoders.
ENCODERS = json.loads((ROOT / "tests/fixtures/public-encoders.json").read_text("utf-8"))
SETTINGS = """
    --num_train_steps=20 --mode=train_and_eval --set=training.eval_every_steps=20
    --set=training.dtype=float32 --set=training.global_batch_size=8 --set=training.warmup_steps=2
    --set=training.learning_rate=2e-3 --set=model.attend_across_documents=true
""".split()
# Program that runs commands without transformers and tokenizers, as on a rented machine.
BLOCKED = """
import json, sys
for name in ("transformers", "tokenizers"):
    sys.modules[name] = None
from bigbird_ja import cli
for words in json.loads(sys.argv[1]):
    if status := cli.run_command_line(words):
        sys.exit(status)
"""


def transformers_loss(folder, data):
    """Compute the loss on the held-out records with the folder's class in transformers."""
    manifest = manifest_lib.load(str(data))
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    losses = []
    for batch in pipeline.read_eval_batches(manifest, str(data), batch_size=8):
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
def roberta_data(tmp_path_factory, sample_corpus, tokenizer_path):
    """Return the folders of a RoBERTa tokenizer, whose padding id is 1, and of a data set."""
    path = tmp_path_factory.mktemp("kinds")
    tokenizer_folders.roberta_bpe(path / "tokenizer", list(articles.generate(40, seed=5)))
    build.make_data(making.request(sample_corpus, str(path / "tokenizer"), str(path / "data")))
    return path / "tokenizer", path / "data"


def test_padding_and_random_tokens_follow_the_tokenizer(roberta_data):
    theirs = transformers.AutoTokenizer.from_pretrained(roberta_data[0])
    manifest = manifest_lib.load(str(roberta_data[1]))
    assert manifest.pad_id == theirs.pad_token_id > 0
    drawn = {theirs.convert_ids_to_tokens(int(i)) for i in manifest.make_rule().ordinary_ids}
    assert drawn and not drawn & {*theirs.all_special_tokens}
    batch = next(iter(pipeline.read_eval_batches(manifest, str(roberta_data[1]), batch_size=64)))
    ids = batch["input_ids"].numpy()
    assert (ids[:, 0] == theirs.bos_token_id).any()
    assert ((batch["document_ids"].numpy() == 0) == (ids == theirs.pad_token_id)).all()


@pytest.fixture
def adopted(roberta_data, tmp_path):
    """Return a function that reads settings from a folder with RoBERTa's tokenizer.

    The function's arguments are the data set's folder and the vocabulary size in config.json.
    """
    folder = shutil.copytree(roberta_data[0], tmp_path / "folder")
    (folder / "model.safetensors").touch()

    def adopted(data_dir, vocab_size=9000):
        config = {"model_type": "modernbert", "hidden_size": 32, "vocab_size": vocab_size}
        (folder / "config.json").write_text(json.dumps(config))
        manifest = manifest_lib.load(str(data_dir))
        return run_settings.adopt_settings(str(folder), manifest, str(data_dir))

    return adopted


def test_vocabulary_of_the_folder_is_adopted_or_refused(adopted, roberta_data, small_run, tmp_path):
    data = roberta_data[1]
    (layer,) = adopted(data)
    assert layer.values["model.vocab_size"] == 9000
    tokens = manifest_lib.load(str(data)).vocab_size
    with pytest.raises(BadInput, match=r"states .* embeddings .* ids up to "):
        adopted(data, tokens - 1)
    with pytest.raises(
        BadInput, match=r"other tokens\. .*Make the data again with the tokenizer .*/folder"
    ):
        adopted(small_run.data_dir)
    (tmp_path / "folder/model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"config.json without weights .*\. Copy the whole folder"):
        adopted(data)


def test_start_from_a_folder_loads_the_tokenizer_once(adopted, roberta_data, monkeypatch):
    loaded, load = [], FolderTokenizer.__init__

    def counted(self, *arguments):
        loaded.append(arguments[1])
        load(self, *arguments)

    monkeypatch.setattr(FolderTokenizer, "__init__", counted)
    data_dir = str(roberta_data[1])
    manifest = check.check_files(data_dir)
    assert adopted(data_dir)
    nothing = types.SimpleNamespace(
        compute_metrics=lambda batch: {}, compute_log_probabilities=None
    )
    # The evaluation fails after it has loaded the tokenizer.
    with pytest.raises(KeyError, match="masked_lm_losses"):
        masked_lm.evaluate_model(nothing, data_dir, manifest)
    assert loaded == [f"{data_dir}/tokenizer.model"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [next(iter(ENCODERS)), *(pytest.param(n, marks=pytest.mark.slow) for n in [*ENCODERS][1:])],
)
def test_encoder_is_continued_and_exported_as_its_class(name, sample_corpus, run, tmp_path):
    """Train and evaluate an encoder without transformers and tokenizers, and export it."""
    folder, data, model = (tmp_path / part for part in ("encoder", "data", "model"))
    encoder = ENCODERS[name]
    getattr(tokenizer_folders, encoder["tokenizer"])(folder, list(articles.generate(40, seed=5)))
    kind, _, head = encoder["class"].partition("For")
    save_encoder(kind, folder, f"For{head}", **encoder["config"])
    config = json.loads((folder / "config.json").read_text())
    stated = {k: v for k, v in config.items() if k not in ("layer_types", "rope_parameters")}
    (folder / "config.json").write_text(json.dumps(stated | encoder["config"]))

    def checked(*words):
        ended = run(*words)
        assert ended.status == 0, ended.stderr[-3000:]

    places = (f"--input={sample_corpus}", f"--tokenizer={folder}", f"--output_dir={data}")
    checked("make-data", *places, "--seq_length=128", "--eval_fraction=0.2")
    expected = transformers_loss(folder, data)
    places = [f"--data_dir={data}", f"--model_dir={model}"]
    sets = [runs.ENGINE, *SETTINGS, f"--init_from={folder}"]
    sets += ["--set=model.attention_type=original_full"] * (kind == "Bert")
    commands = [["pretrain", *places, *sets], ["evaluate", *places]]
    ended = command_line.run(sys.executable, "-c", BLOCKED, json.dumps(commands), timeout=800)
    assert ended.status == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in (model / "eval.jsonl").read_text().splitlines()]
    before, after = lines[0], lines[-1]
    print(f"{name}: {before['masked_lm_loss']:.5f} here, {expected:.5f} in transformers")
    assert before["step"] == 0 and before["masked_lm_loss"] == pytest.approx(expected, abs=1e-3)
    assert after["step"] == 20 and after["masked_lm_loss"] < before["masked_lm_loss"] - 0.02
    assert after["bits_per_character"] > 0 and all(one["truth"] for one in after["examples"])
    checked("export", *places, f"--output_dir={tmp_path / 'hf'}")
    report = json.loads((tmp_path / "hf/parity_report.json").read_text())
    assert report["tokenizer"]["agrees"] and report["scores"]["agrees"]
    loaded, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    # The export does not contain the pooler, and AutoModel initializes it.
    poolers = {f"bert.pooler.dense.{part}" for part in ("weight", "bias")}
    assert not info["missing_keys"] and not info["unexpected_keys"] - poolers
    source = transformers.AutoConfig.from_pretrained(folder)
    for part in ("pad", "bos", "eos", "cls", "sep"):
        assert getattr(loaded.config, f"{part}_token_id") == getattr(source, f"{part}_token_id")
    length = encoder["config"]["max_position_embeddings"]
    assert loaded.config.max_position_embeddings == length, "the source's, not the data's"
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    card = (tmp_path / "hf/README.md").read_text()
    # The source is a local folder without a name on the Hub.
    assert "\nbase_model:" not in card and f"`{checksum}`" in card


FOLDERS = os.environ.get("BIGBIRD_JA_ENCODERS", "")
STEPS = """
    --num_train_steps=4 --batch_size=1 --learning_rate=1e-6 --mode=train_and_eval
    --set=training.warmup_steps=1 --set=training.dtype=float32 --set=training.log_every_steps=1
    --set=checkpoints.save_every_steps=2
""".split()
TEXTS = ["query: 日本の首都はどこですか。", "passage: 東京は日本の首都である。", "passage: hello"]


def killed_after_a_save(words, model):
    """Start `pretrain`, and kill it after it has saved a checkpoint."""
    process = subprocess.Popen([sys.executable, "-m", "bigbird_ja", *words], cwd=ROOT)
    while process.poll() is None and not CheckpointStore(str(model)).list_steps():
        time.sleep(1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not FOLDERS, reason="BIGBIRD_JA_ENCODERS names no folders of encoders")
@pytest.mark.parametrize("length", [512, 4096])
@pytest.mark.parametrize("folder", FOLDERS.split(":"), ids=lambda path: Path(path).name)
def test_real_encoder_is_continued_and_exported_as_its_class(folder, length, tmp_path):
    corpus, data, model, made = (tmp_path / name for name in ("c.jsonl", "data", "model", "hf"))

    def done(*words):
        ended = command_line.run_cli(*words, timeout=3000)
        assert ended.status == 0, ended.stderr[-3000:]

    done("sample", f"--output={corpus}", "--documents=40", "--seed=3")
    words = [f"--input={corpus}", f"--tokenizer={folder}", f"--output_dir={data}"]
    done("make-data", *words, f"--seq_length={length}", "--eval_fraction=0.1")
    places = [f"--data_dir={data}", f"--model_dir={model}"]
    training = ["pretrain", *places, f"--init_from={folder}", *STEPS]
    killed_after_a_save(training, model)
    done(*training)
    assert '"resumed"' in (model / "events.jsonl").read_text()
    evaluated = (model / "eval.jsonl").read_text().splitlines()
    losses = [json.loads(line)["masked_lm_loss"] for line in evaluated]
    done("evaluate", *places, "--max_batches=1")
    done("export", *places, f"--output_dir={made}")
    report = json.loads((made / "parity_report.json").read_text())
    kind = json.loads((made / "config.json").read_text())["architectures"][0]
    row = [Path(folder).name, length, kind, *(f"{loss:.4f}" for loss in (losses[0], losses[-1]))]
    row += [f"{report['scores']['mean_difference']:.1e}"]
    assert report["scores"]["agrees"]
    assert (kind == "BertForMaskedLM") == (length == 512)
    trusted = {"trust_remote_code": kind != "BertForMaskedLM"}
    transformers.AutoModelForMaskedLM.from_pretrained(made, **trusted)
    if importlib.util.find_spec("sentence_transformers"):
        from sentence_transformers import SentenceTransformer

        source = SentenceTransformer(folder).encode(TEXTS, normalize_embeddings=True)
        ours = SentenceTransformer(str(made), **trusted).encode(TEXTS, normalize_embeddings=True)
        row.append(f"{(source * ours).sum(1).min():.6f}")
        assert (source * ours).sum(1).min() > 0.999
    head = ["encoder", "tokens", "class", "loss", "after 4 steps", "mean difference", "cosine"]
    print(table([row], head[: len(row)]))
