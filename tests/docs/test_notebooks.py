"""The notebooks for free TPUs run completely. Three sessions train the same weights as one."""

import ast
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from bigbird_ja.model_dir import log as run_log
from bigbird_ja.text import articles
from testkit import ROOT, killing

FOLDERS = ("kaggle-data", "kaggle-train", "colab")
STEPS = 30


def read(name):
    return json.loads(Path(ROOT, "notebooks", name, f"{name}.ipynb").read_text("utf-8"))


def code(name):
    """Return the code cells of a notebook."""
    notebook = read(name)
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def metadata(name):
    return json.loads((ROOT / "notebooks" / name / "kernel-metadata.json").read_text("utf-8"))


def test_a_push_starts_each_notebook_on_its_machine_without_a_pinned_image():
    for name in ("kaggle-data", "kaggle-train"):
        pushed = metadata(name)
        assert pushed["code_file"] == f"{name}.ipynb" and pushed["enable_internet"]
        assert "docker_image" not in json.dumps(pushed), "kaggle-cli#1197: that is the CPU's"
        assert "kaggle" not in read(name)["metadata"]
    assert not metadata("kaggle-data")["enable_tpu"]
    train = metadata("kaggle-train")
    assert train["enable_tpu"] and train["machine_shape"] == "TpuV5E8"
    assert train["kernel_sources"] == [metadata("kaggle-data")["id"]]


def test_the_notebooks_share_their_cells_and_have_no_output():
    data, train, colab = map(code, FOLDERS)
    assert data[2] == colab[2] and colab[3].startswith(data[3])
    assert train[3:] == colab[4:]
    install = data[1][data[1].index("import glob") :]
    assert train[1].endswith(install) and colab[1].endswith(install)
    for name in FOLDERS:
        for cell in code(name):
            ast.parse(cell)
        assert not any(c.get("outputs") for c in read(name)["cells"])


CONFIG = {
    **killing.CONFIG,
    "tokenize": {"vocab_size": 1200},
    "make_data": {
        **{"seq_length": 128, "max_predictions_per_seq": 20, "mask_unit": "subword"},
        **{"eval_fraction": 0.05, "num_shards": 2},
    },
    "training": {**killing.CONFIG["training"], "num_train_steps": STEPS, "global_batch_size": 8},
}


@pytest.fixture
def session(tmp_path, monkeypatch, sample_corpus):
    """Return a function that executes the cells of a notebook and returns their output.

    A call is `session("colab", 5, ROOT="x")`: the notebook's name, the step at which the time limit
    of the training expires (optional), and replaced parameters. The cells run in a kernel of this
    Python, without pip.
    """
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason="needs the extra notebooks")
    import nbclient
    import nbformat

    config, pip = tmp_path / "small.yaml", tmp_path / "modules/pip/__main__.py"
    config.write_text(yaml.safe_dump(CONFIG))
    pip.parent.mkdir(parents=True)
    (pip.parent / "__init__.py").touch()
    pip.write_text(
        "import sys\nprint('numpy==0')\n"
        f"print(*sys.argv[1:], file=open({str(tmp_path / 'pip.log')!r}, 'a'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{pip.parent.parent}:{ROOT}")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    given = {"CONFIG": str(config), "INPUT": sample_corpus, "SETTINGS": {}, "USE_TPU": False}

    def execute(name, ends_at=None, **places):
        notebook = nbformat.reads(json.dumps(read(name)), as_version=4)
        (cell,) = [c for c in notebook.cells if c.metadata.get("tags") == ["parameters"]]
        lines = [f"{key} = {value!r}" for key, value in {**given, **places}.items()]
        cell.source = "\n".join([cell.source, *lines])
        if ends_at is not None:
            starts = [c.source.partition("\n")[0] for c in notebook.cells]
            text = f"from testkit import clocked\n\nclocked.end_at_step({ends_at})"
            position = starts.index("## Training")
            notebook.cells.insert(position, nbformat.v4.new_code_cell(text))
        nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
        streams = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
        return "".join(o.get("text", "") for o in streams)

    return execute


@pytest.fixture
def inputs(tmp_path):
    """Return the folder of a Kaggle session's inputs, which contains a wheel."""
    wheel = tmp_path / "input/a-wheel/bigbird_ja-0.2.0.dev0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    return tmp_path / "input"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_sessions_on_kaggle_end_with_the_weights_of_one(session, inputs, tmp_path):
    made = tmp_path / "data/bigbird-ja"
    session("kaggle-data", INPUTS=str(inputs), ROOT=str(made))
    shutil.copytree(made, inputs / "bigbird-ja-data/bigbird-ja")
    outputs = [tmp_path / place / "bigbird-ja" for place in ("first", "second", "third")]
    for number, (output, ends_at) in enumerate(zip(outputs, (3, 3, None), strict=True)):
        printed = session("kaggle-train", ends_at, INPUTS=str(inputs), ROOT=str(output))
        assert ("continues step" in printed) == (number > 0), printed
        assert ("not finished: make a dataset" in printed) == (number < 2), printed
        assert (output / "huggingface/model.safetensors").exists() == (number == 2)
        # Each session gets the outputs of all earlier sessions as inputs, without hidden files.
        visible = shutil.ignore_patterns(".*")
        shutil.copytree(output, inputs / f"session-{number}/bigbird-ja", ignore=visible)
    assert "日本の首都は【" in printed and f"finished: {outputs[2]}/huggingface" in printed
    block = json.loads((outputs[2] / "measured.json").read_text())
    assert block["measured_tokens_per_second"] > 0 and block["planned_tokens_per_second"] > 0
    installed = (tmp_path / "pip.log").read_text().splitlines()
    assert "bigbird_ja-0.2.0.dev0" in installed[1] and "--constraint" in installed[1]
    events = run_log.read_events(str(outputs[2] / "model"))
    resumed = [event["global_step"] for event in events if event["event"] == "resumed"]
    assert len(resumed) == 2 and 3 <= resumed[0] < resumed[1] < STEPS

    for number in range(3):
        shutil.rmtree(inputs / f"session-{number}")
    whole = tmp_path / "whole/bigbird-ja"
    session("kaggle-train", INPUTS=str(inputs), ROOT=str(whole))
    assert killing.digest(str(outputs[2] / "model")) == killing.digest(str(whole / "model"))


def save_e5(folder):
    """Save a small E5: a BERT without a head, with random weights and the tokenizer of XLM-R."""
    for package in ("transformers", "tokenizers", "safetensors"):
        pytest.importorskip(package, reason="needs the extra huggingface")
    import safetensors.numpy

    from testkit import tokenizer_folders

    tokenizer_folders.xlm_roberta(folder, list(articles.generate(40, seed=5)))
    rows = len(json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"])
    sizes = {"vocab_size": rows + 9, "max_position_embeddings": 128, "type_vocab_size": 2}
    config = {"model_type": "bert", "architectures": ["BertModel"], "pad_token_id": 0, **sizes}
    config |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"intermediate_size": 64, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    shapes = {f"embeddings.{n}": (size, 32) for n, size in zip(names, sizes.values(), strict=True)}
    layer = "encoder.layer.0"
    for name in ("query", "key", "value"):
        shapes[f"{layer}.attention.self.{name}"] = (32, 32)
    shapes |= {f"{layer}.attention.output.dense": (32, 32), f"{layer}.output.dense": (32, 64)}
    shapes[f"{layer}.intermediate.dense"] = (64, 32)
    draw = np.random.default_rng(0)
    weights = {f"{name}.weight": draw.normal(0, 0.05, shape) for name, shape in shapes.items()}
    weights |= {f"{n}.bias": np.zeros(s[0]) for n, s in shapes.items() if n.startswith(layer)}
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        weights[f"{name}.LayerNorm.weight"] = np.ones(32)
        weights[f"{name}.LayerNorm.bias"] = np.zeros(32)
    plain = {name: value.astype(np.float32) for name, value in weights.items()}
    safetensors.numpy.save_file(plain, folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_encoder_is_continued_on_kaggle_and_keeps_its_class(session, inputs, tmp_path):
    made, output = tmp_path / "data/bigbird-ja", tmp_path / "run/bigbird-ja"
    save_e5(tmp_path / "e5")
    parts = ("make_data", "data", "training", "checkpoints")
    settings = {f"{part}.{key}": CONFIG[part][key] for part in parts for key in CONFIG[part]}
    places = {"ENCODER": str(tmp_path / "e5"), "CONFIG": "", "SETTINGS": settings}
    session("kaggle-data", INPUTS=str(inputs), ROOT=str(made), **places)
    shutil.copytree(made, inputs / "bigbird-ja-data/bigbird-ja")
    printed = session("kaggle-train", INPUTS=str(inputs), ROOT=str(output))
    assert "日本の首都は【" in printed and f"finished: {output}/huggingface" in printed
    config = json.loads((output / "huggingface/config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"], "its class, without code"
    assert config["num_hidden_layers"] == 1 and config["max_position_embeddings"] == 128
    tokenizer = json.loads((output / "huggingface/tokenizer_config.json").read_text())
    assert tokenizer["mask_token"] == "<mask>"
    lines = (output / "model/eval.jsonl").read_text().splitlines()
    losses = [json.loads(line)["masked_lm_loss"] for line in lines]
    assert losses[-1] < losses[0]
    # `plan` refuses settings that do not affect it. The session prints this refusal and continues.
    assert "no plan: " in printed
    assert json.loads((output / "measured.json").read_text())["planned_tokens_per_second"] is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_session_on_colab_makes_the_data_trains_and_exports(session, tmp_path):
    drive = tmp_path / "drive"
    drive.mkdir()
    (drive / "bigbird_ja-0.2.0.dev0-py3-none-any.whl").touch()
    printed = session("colab", INPUTS=str(drive), ROOT=str(drive))
    assert f"finished: {drive}/huggingface" in printed and "日本の首都は【" in printed
    assert (drive / "huggingface/model.safetensors").exists()


def run_cells(name, cells, **places):
    """Execute cells of a notebook in this process.

    Returns:
        The error message with which a cell exits, or None.
    """
    values = {}
    exec(code(name)[0], values)
    values |= places
    for index in cells:
        try:
            exec(code(name)[index], values)
        except RuntimeError as error:
            assert type(error).__name__ == "Stop"
            (line,) = error._render_traceback_()
            return line
    return None


@pytest.fixture
def no_pip(monkeypatch):
    """Replace the child processes of notebook cells (pip and JAX) by fixed results.

    A test may change these results.
    """
    pip, jax = (SimpleNamespace(returncode=0, stdout="cpu|1|cpu\n", stderr="") for _ in range(2))
    monkeypatch.setattr("subprocess.run", lambda words, **rest: jax if "-c" in words else pip)
    return SimpleNamespace(pip=pip, jax=jax)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_bad_session_stops_with_one_line_of_advice(name, inputs, no_pip, tmp_path, monkeypatch):
    places = {"INPUTS": str(inputs), "ROOT": str(tmp_path / "out"), "STARTED": 0}
    assert run_cells(name, [1], **places) is None
    (inputs / "a-wheel").rename(tmp_path / "elsewhere")
    assert "STOPPED: no wheel is" in run_cells(name, [1], **places)
    places["WHEEL"], no_pip.pip.returncode = "x.whl", 1
    no_pip.pip.stderr = "...\nERROR: requires a different Python: 3.10.1 not in '>=3.11'\n"
    line = run_cells(name, [1], **places)
    assert "pip cannot install x.whl" in line and "requires a different Python" in line
    no_pip.pip.returncode = 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1e9))
    assert "1.0 GB are free" in run_cells(name, [1], **places)


def test_a_session_without_tpu_or_data_or_with_half_a_run_stops(inputs, no_pip, tmp_path):
    places = {"INPUTS": str(inputs), "ROOT": str(tmp_path / "out")}
    assert "kaggle-data is not attached" in run_cells("kaggle-train", [1, 2], **places)
    made = inputs / "data/bigbird-ja"
    (made / "data").mkdir(parents=True)
    (made / "settings.json").write_text(json.dumps({"config": "base-4096", "settings": {}}))
    assert "no finished data set" in run_cells("kaggle-train", [1, 2], **places)
    (made / "data/manifest.json").touch()
    assert "TPU v5e-8" in run_cells("kaggle-train", [1, 2, 3], **places)  # JAX finds only a CPU.
    no_pip.jax.returncode = 1
    assert "JAX finds no device" in run_cells("kaggle-train", [1, 2, 3], **places)
    for number, step in ((0, 8), (1, 30), (2, 4)):
        model = inputs / f"session-{number}/bigbird-ja/model"
        model.mkdir(parents=True)
        (model / "checkpoint").touch()
        (model / "heartbeat.json").write_text(json.dumps({"global_step": step}))
    line = run_cells("kaggle-train", [1, 2], **places)
    assert "session-1/bigbird-ja/model was copied without its hidden file" in line


@pytest.mark.parametrize(
    ("kind", "preset", "attention"),
    [
        ("modernbert", "continue-8192", None),
        ("bert", "base-4096", "original_full"),
        ("xlm-roberta", "base-4096", "original_full"),
    ],
)
def test_preset_and_settings_follow_from_the_encoder(
    kind, preset, attention, inputs, no_pip, tmp_path
):
    encoder, out = tmp_path / "encoder", tmp_path / "out"
    encoder.mkdir()
    (encoder / "config.json").write_text(json.dumps({"model_type": kind}))
    places = {"INPUTS": str(inputs), "ROOT": str(out), "ENCODER": str(encoder)}
    places["SETTINGS"] = {"training.num_train_steps": 7}
    assert run_cells("kaggle-data", [1, 2], **places) is None
    stored = json.loads((out / "settings.json").read_text())
    assert stored["config"] == preset and stored["settings"]["training.num_train_steps"] == 7
    assert stored["settings"].get("model.attention_type") == attention
    assert (out / "encoder/config.json").exists()
