"""From an encoder that somebody made to one that is continued: `make-data --tokenizer FOLDER`,
`pretrain --init_from FOLDER`, `evaluate`, `export`; nightly for every public layout.

`config.json` states what the models' cards and transformers' code say; widths, layers and
vocabularies are small, and weights are drawn here.
"""

import hashlib
import json
import shutil
import sys
import types

import numpy as np
import pytest

from bigbird_ja.data import build, check, pipeline
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.evaluation import masked_lm
from bigbird_ja.huggingface import run_settings
from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles
from bigbird_ja.text.folder_tokenizer import FolderTokenizer
from testkit import ROOT, command_line, runs
from tests.data import making

torch = pytest.importorskip("torch", reason="the encoders are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
from testkit import tokenizer_folders  # noqa: E402 - it imports transformers

# Class, tokenizer, and keys as transformers 4 wrote them into the published config.json.
ENCODERS = json.loads((ROOT / "tests/fixtures/public-encoders.json").read_text("utf-8"))
SETTINGS = """
    --num_train_steps=20 --mode=train_and_eval --set=training.eval_every_steps=20
    --set=training.dtype=float32 --set=training.global_batch_size=8 --set=training.warmup_steps=2
    --set=training.learning_rate=2e-3 --set=model.attend_across_documents=true
""".split()
# As on a rented machine, which has neither.
BLOCKED = """
import json, sys
for name in ("transformers", "tokenizers"):
    sys.modules[name] = None
from bigbird_ja import cli
for words in json.loads(sys.argv[1]):
    if status := cli.run_command_line(words):
        sys.exit(status)
"""


def save_encoder(kind, folder, head="ForMaskedLM", **sizes):
    """A small model of random weights beside the folder's tokenizer; its embeddings have more rows
    than that has tokens, as many that are published do."""
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
def roberta_data(tmp_path_factory, sample_corpus, tokenizer_path):
    """A folder with RoBERTa's tokenizer, whose padding is id 1, and a data set made by it."""
    path = tmp_path_factory.mktemp("kinds")
    tokenizer_folders.roberta_bpe(path / "tokenizer", list(articles.documents(40, seed=5)))
    build.make_data(making.request(sample_corpus, str(path / "tokenizer"), str(path / "data")))
    return path / "tokenizer", path / "data"


def test_padding_and_random_tokens_are_the_tokenizers(roberta_data):
    theirs = transformers.AutoTokenizer.from_pretrained(roberta_data[0])
    manifest = manifest_lib.load(str(roberta_data[1]))
    assert manifest.pad_id == theirs.pad_token_id > 0
    drawn = {theirs.convert_ids_to_tokens(int(i)) for i in manifest.rule().ordinary_ids}
    assert drawn and not drawn & {*theirs.all_special_tokens}
    batch = next(iter(pipeline.eval_batches(manifest, str(roberta_data[1]), batch_size=64)))
    ids = batch["input_ids"].numpy()
    assert (ids[:, 0] == theirs.bos_token_id).any()
    assert ((batch["document_ids"].numpy() == 0) == (ids == theirs.pad_token_id)).all()


def test_embeddings_that_are_too_few_are_refused(roberta_data, tmp_path):
    folder = shutil.copytree(roberta_data[0], tmp_path / "folder")
    manifest = manifest_lib.load(str(roberta_data[1]))
    config = {"model_type": "modernbert", "hidden_size": 32, "vocab_size": manifest.vocab_size - 1}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"config.json without weights .*: copy the whole folder"):
        run_settings.adopted_settings(str(folder), None, manifest, str(roberta_data[1]))
    (folder / "model.safetensors").touch()
    with pytest.raises(BadInput, match=r"embeddings of .* tokens .* ids up to "):
        run_settings.adopted_settings(str(folder), None, manifest, str(roberta_data[1]))
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 9000}))
    adopted = run_settings.adopted_settings(str(folder), None, manifest, str(roberta_data[1]))
    assert ("model.vocab_size", 9000) in [(o.key, o.value) for o in adopted]


def test_data_of_another_tokenizer_is_refused(roberta_data, small_run, tmp_path):
    """Rows of the embeddings stood for other words, and it trained."""
    folder = shutil.copytree(roberta_data[0], tmp_path / "folder")
    (folder / "model.safetensors").touch()
    config = {"model_type": "modernbert", "hidden_size": 32, "vocab_size": 9000}
    (folder / "config.json").write_text(json.dumps(config))
    other = small_run.data_dir
    with pytest.raises(BadInput, match=f"other tokens: .* make-data --tokenizer {folder}"):
        run_settings.adopted_settings(str(folder), None, manifest_lib.load(other), other)


def test_a_start_from_a_folder_loads_the_tokenizer_once(roberta_data, tmp_path, monkeypatch):
    folder = shutil.copytree(roberta_data[0], tmp_path / "folder")
    (folder / "model.safetensors").touch()
    config = {"model_type": "modernbert", "hidden_size": 32, "vocab_size": 9000}
    (folder / "config.json").write_text(json.dumps(config))
    loaded, load = [], FolderTokenizer.__init__

    def counted(self, *arguments):
        loaded.append(arguments[1])
        load(self, *arguments)

    monkeypatch.setattr(FolderTokenizer, "__init__", counted)
    data_dir = str(roberta_data[1])
    manifest, _ = check.fast_check(data_dir)
    assert run_settings.adopted_settings(str(folder), None, manifest, data_dir)
    nothing = types.SimpleNamespace(metrics=lambda batch: {}, log_probabilities=None)
    with pytest.raises(KeyError, match="masked_lm_losses"):  # after the tokenizer is loaded
        masked_lm.evaluate_model(nothing, data_dir, manifest)
    assert loaded == [f"{data_dir}/tokenizer.model"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [next(iter(ENCODERS)), *(pytest.param(n, marks=pytest.mark.nightly) for n in [*ENCODERS][1:])],
)
def test_an_encoder_is_continued_and_comes_back(name, sample_corpus, run, tmp_path):
    """What trains and evaluates needs no package of Hugging Face."""
    folder, data, model = (tmp_path / part for part in ("encoder", "data", "model"))
    encoder = ENCODERS[name]
    getattr(tokenizer_folders, encoder["tokenizer"])(folder, list(articles.documents(40, seed=5)))
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
    poolers = {f"bert.pooler.dense.{part}" for part in ("weight", "bias")}  # of AutoModel alone
    assert not info["missing_keys"] and not info["unexpected_keys"] - poolers
    source = transformers.AutoConfig.from_pretrained(folder)
    for part in ("pad", "bos", "eos", "cls", "sep"):
        assert getattr(loaded.config, f"{part}_token_id") == getattr(source, f"{part}_token_id")
    length = encoder["config"]["max_position_embeddings"]
    assert loaded.config.max_position_embeddings == length, "the source's, not the data's"
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    card = (tmp_path / "hf/README.md").read_text()
    assert "\nbase_model:" not in card and f"`{checksum}`" in card  # the source has no name
