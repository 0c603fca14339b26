"""The fine-tuning example runs as it is printed, on an exported model and long documents."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from testkit import ROOT, command_line, runs

pytest.importorskip("torch", reason="fine-tuning needs PyTorch")
pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def exported(small_run: runs.SmallRun, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that `export` wrote."""
    folder = str(tmp_path_factory.mktemp("exported") / "hf")
    ended = command_line.run_cli(
        "export", f"--model_dir={small_run.model_dir}", f"--output_dir={folder}"
    )
    assert ended.status == 0, ended.stderr
    return folder


def rows(task: str, corpus: str) -> list[dict[str, str]]:
    """Of texts of the sample; most are longer than the model's 256 tokens."""
    lines = Path(corpus).read_text("utf-8").splitlines()[:30]
    texts = [json.loads(line)["text"] for line in lines]
    if task == "classification":
        return [{"text": t, "label": "年" if t.count("年") > 10 else "他"} for t in texts]
    question = "何について書かれていますか。"
    return [{"question": question, "context": t, "answer": t.split("\n")[2]} for t in texts]


@pytest.mark.parametrize(
    ("task", "loads"),
    [
        ("classification", "AutoModelForSequenceClassification"),
        ("qa", "AutoModelForQuestionAnswering"),
    ],
)
def test_the_example_fine_tunes_an_exported_model(
    task: str, loads: str, exported: str, sample_corpus: str, tmp_path: Path
) -> None:
    data, output = tmp_path / "data.jsonl", tmp_path / "tuned"
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows(task, sample_corpus)]
    data.write_text("".join(lines), "utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/examples/finetune.py"), task, "--model", exported,
         "--data", str(data), "--output", str(output), "--epochs", "2",
         "--learning_rate", "1e-3"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert math.isfinite(result["eval_loss"]) and 0 <= result["eval_accuracy"] <= 1
    tuned = getattr(transformers, loads).from_pretrained(output)
    before = transformers.AutoModel.from_pretrained(exported).state_dict()
    after = tuned.base_model.state_dict()
    name = "embeddings.word_embeddings.weight"
    assert not before[name].equal(after[name])
    ids = transformers.AutoTokenizer.from_pretrained(output)("東京")["input_ids"]
    assert ids == transformers.AutoTokenizer.from_pretrained(exported)("東京")["input_ids"]
