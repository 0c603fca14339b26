"""Small finished runs, created by the real commands. Tests that only read a run share it."""

import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from testkit import command_line

# Engine of tests that do not test an engine. TPUEstimator starts faster than JAX.
ENGINE = "--engine=" + (
    "estimator" if importlib.util.find_spec("tensorflow_estimator") is not None else "auto"
)
SETTINGS = (
    "--set=model.hidden_size=32",
    "--set=model.num_layers=2",
    "--set=model.block_size=16",
    "--set=model.num_attention_heads=2",
    "--set=model.intermediate_size=48",
    "--set=training.global_batch_size=4",
    "--set=training.log_every_steps=2",
    "--set=checkpoints.save_every_steps=2",
    "--set=training.warmup_steps=0",
    "--set=training.learning_rate=1e-2",
    "--set=training.dtype=float32",
)


@dataclass(frozen=True)
class SmallRun:
    """Paths of the files of a small run."""

    data_dir: str
    model_dir: str
    tokenizer: str
    corpus: str

    @classmethod
    def of(cls, directory, corpus, tokenizer):
        """Return the paths of the files that the function `make` writes to this folder."""
        return cls(str(directory / "data"), str(directory / "model"), tokenizer, corpus)


def make(directory, corpus, tokenizer, *sets):
    """Run `make-data` with sequences of 256 tokens, and `pretrain` with 6 steps.

    The run has checkpoints at the steps 2, 4 and 6.
    """
    run = SmallRun.of(directory, corpus, tokenizer)
    making = ["make-data", f"--input={corpus}", f"--tokenizer={tokenizer}", "--num_shards=4"]
    making += [f"--output_dir={run.data_dir}", "--seq_length=256", "--eval_fraction=0.1"]
    training = ["pretrain", f"--data_dir={run.data_dir}", f"--model_dir={run.model_dir}", ENGINE]
    training += ["--num_train_steps=6", *SETTINGS, *(f"--set={item}" for item in sets)]
    for arguments in ([*making, "--max_predictions_per_seq=40"], training):
        ended = command_line.run_cli(*arguments)
        if ended.status:
            pytest.fail(f"{arguments[0]} ended with {ended.status}: {ended.stderr[-2000:]}")
    return run


def copy_inputs(run, place):
    """Copy a small run to a folder, with its corpus, tokenizer and config.

    Add a `preflight.json` with results for one chip.
    """
    shutil.copytree(run.data_dir, place / "data")
    shutil.copytree(run.model_dir, place / "model")
    shutil.copy(run.corpus, place / "corpus.jsonl")
    for suffix in (".model", ".vocab", ".json"):
        shutil.copy(Path(run.tokenizer).with_suffix(suffix), place / f"ja{suffix}")
    shutil.copy(f"{run.model_dir}/config.yaml", place)
    chip = {"chip": "v3", "fits": True, "seq_length": 256, "batch_per_core": 1}
    figures = {"chips": [chip]}
    (place / "preflight.json").write_text(json.dumps(figures), "utf-8")
    return place
