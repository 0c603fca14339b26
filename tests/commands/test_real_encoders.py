"""Encoders with real weights take the whole path: BIGBIRD_JA_ENCODERS names their folders.

    BIGBIRD_JA_ENCODERS=/encoders/minilm:/encoders/e5 python -m pytest -rP -m nightly \\
        tests/commands/test_real_encoders.py
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bigbird_ja.process.console import table
from bigbird_ja.run.checkpoints import CheckpointStore
from testkit import ROOT, command_line

FOLDERS = os.environ.get("BIGBIRD_JA_ENCODERS", "")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not FOLDERS, reason="BIGBIRD_JA_ENCODERS names no folders of encoders"),
]
STEPS = "--num_train_steps=4 --batch_size=1 --learning_rate=1e-6 --mode=train_and_eval".split()
SETS = ["training.dtype=float32", "training.log_every_steps=1", "checkpoints.save_every_steps=2"]
TEXTS = ["query: 日本の首都はどこですか。", "passage: 東京は日本の首都である。", "passage: hello"]


def killed_after_a_save(words, model):
    """Start a command, and kill it once it has saved."""
    process = subprocess.Popen([sys.executable, "-m", "bigbird_ja", *words], cwd=ROOT)
    while process.poll() is None and not CheckpointStore(str(model)).steps():
        time.sleep(1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("length", [512, 4096])
@pytest.mark.parametrize("folder", FOLDERS.split(":"), ids=lambda path: Path(path).name)
def test_the_whole_path_with_real_weights(folder, length, tmp_path):
    import transformers

    corpus, data, model, made = (tmp_path / name for name in ("c.jsonl", "data", "model", "hf"))

    def done(*words):
        ended = command_line.run_cli(*words, timeout=3000)
        assert ended.status == 0, ended.stderr[-3000:]

    done("sample", f"--output={corpus}", "--documents=40", "--seed=3")
    words = [f"--input={corpus}", f"--tokenizer={folder}", f"--output_dir={data}"]
    done("make-data", *words, f"--seq_length={length}", "--eval_fraction=0.1")
    places = [f"--data_dir={data}", f"--model_dir={model}"]
    training = [
        "pretrain",
        *places,
        f"--init_from={folder}",
        *STEPS,
        "--set=training.warmup_steps=1",
    ]
    training += [f"--set={each}" for each in SETS]
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
