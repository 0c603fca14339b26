"""Folders of other tools, as every output, MODEL_DIR and DATA_DIR: nothing in them may change.

Also folders whose files have the names of ours, without the mark that proves that they are ours.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from testkit.hostile.case import ANY, LONG, REFUSED, Case, commands, good_arguments

# Folder -> its files. What is in them matters little: no command may believe a name.
FOLDERS: dict[str, tuple[str, ...]] = {
    "TensorFlow 1": (
        "checkpoint", "graph.pbtxt", "model.ckpt-1000.data-00000-of-00001",
        "model.ckpt-1000.index", "model.ckpt-1000.meta", "events.out.tfevents.1",
    ),
    "Estimator": (
        "checkpoint", "model.ckpt-0.index", "model.ckpt-0.data-00000-of-00001",
        "model.ckpt-500.index", "model.ckpt-500.data-00000-of-00001", "eval/events.out.tfevents.2",
        "export/1700000000/saved_model.pb", "graph.pbtxt",
    ),
    "BERT": ("bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.meta"),
    "PyTorch": ("model.pt", "last.ckpt", "optimizer.pth", "config.yaml", "metrics.jsonl"),
    "Hugging Face": (
        "config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json",
        "tokenizer_config.json", "spiece.model", "README.md", ".gitattributes",
    ),
    "git": (".git/HEAD", ".git/objects/ab/cd", ".gitignore", "src/main.py", "README.md"),
    "home": (".bashrc", ".ssh/id_ed25519", ".config/gcloud/credentials.db", "thesis.tex"),
    "names of ours": (
        "config.yaml", "heartbeat.json", "metrics.jsonl", "events.jsonl", "eval.jsonl",
        "tokenizer.model", "tokenizer.vocab", "tokenizer.json", "manifest.json", "export.json",
        "train-00000-of-00004.tfrecord", "eval-00000-of-00004.tfrecord", "model.ckpt-6.json",
        "model.ckpt-6.index", "model.ckpt-6.data-00000-of-00001", "damaged-model.ckpt-4.index",
        ".make-data/owned.json", ".scratch-1/model", ".tmp-config.yaml~1", "corpus.jsonl",
        "report.html", "plan.png", "figures.json", "demo.json", "run/config.yaml",
    ),
    "unknown mark": (".bigbird-ja.json", "model.safetensors", "manifest.json", "config.yaml"),
}  # fmt: skip
# Command -> the flag of its folder.
_OUTPUTS = {
    "demo": "--work_dir", "make-data": "--output_dir", "pretrain": "--model_dir",
    "export": "--output_dir", "preflight": "--dump_hlo",
}  # fmt: skip
# Command -> the flags of its single output file; a name that is free in such a folder is taken.
_FILES = {
    "sample": ("--output={}",), "report": ("--output={}",), "plan": ("--plot={}",),
    "preflight": ("--output={}",),
    "tokenize": ("--output_prefix={}",),
}  # fmt: skip
_INPUTS = ("model_dir", "data_dir")
_OVERWRITE = frozenset({"make-data", "pretrain", "export", "sample", "tokenize"})


def folder_cases() -> Iterator[Case]:
    """All of them."""
    for tool, names in FOLDERS.items():
        prepare = functools.partial(_make, tool)
        for command, flag in _OUTPUTS.items():
            for words in _with_overwrite(command, _replaced(command, flag, "{out}/there")):
                name = f"{flag} a folder of {tool}{' --overwrite' * (words[-1] == '--overwrite')}"
                yield Case(name, command, words, REFUSED, prepare)
        for command, flags in _FILES.items():
            for file in names:
                path = "{out}/there/" + file
                if command == "tokenize":
                    path = path.removesuffix(".model")
                given = [word.format(path) for word in flags]
                words = _replaced(command, given[-1].partition("=")[0], path, *given[:-1])
                for more in _with_overwrite(command, words):
                    statuses = ANY if command not in LONG else REFUSED
                    name = f"{more[-1]} {file} of {tool}"
                    yield Case(name, command, more, statuses, prepare)
        for command in commands(*LONG):
            for flag in _INPUTS:
                if any(word.startswith(f"--{flag}={{in}}") for word in good_arguments(command)):
                    words = _replaced(command, f"--{flag}", "{out}/there")
                    yield Case(f"--{flag} a folder of {tool}", command, words, REFUSED, prepare)


def _replaced(command: str, flag: str, value: str, *more: str) -> tuple[str, ...]:
    """The good invocation with another value of a flag."""
    kept = [word for word in good_arguments(command) if not word.startswith(f"{flag}=")]
    return (*kept, *more, f"{flag}={value}")


def _with_overwrite(command: str, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    if command in _OVERWRITE:
        yield (*words, "--overwrite")


def _make(tool: str, inputs: Path, outputs: Path) -> None:
    for name in FOLDERS[tool]:
        path = outputs / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{tool}: {name}\n", "utf-8")
