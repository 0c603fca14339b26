"""Generates damaged inputs and folders of other tools for every command; `judge` runs them.

Damaged are all files in the folders that a command is given, so a new file needs no line here.
"""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testkit.declared import GONE, changed
from testkit.runs import SETTINGS

# A good invocation of each command that reads or writes files. {in} holds a small finished run,
# {out} is an empty folder.
GOOD = {
    "demo": "--work_dir={out}/demo",
    "sample": "--output={out}/sample.jsonl --documents=3",
    "tokenize": "--input={in}/corpus.jsonl --output_prefix={out}/ja --vocab_size=1200",
    "make-data": "--input={in}/corpus.jsonl --tokenizer={in}/ja.model --output_dir={out}/data"
    " --seq_length=256 --num_shards=4 --eval_fraction=0.1",
    "check-data": "--data_dir={in}/data",
    "config": "{in}/config.yaml",
    "plan": "--config={in}/config.yaml --data_dir={in}/data --preflight={in}/preflight.json",
    "preflight": "--config={in}/config.yaml --output={out}/figures.json --dump_hlo={out}/hlo",
    "pretrain": "--config={in}/config.yaml --data_dir={in}/data --model_dir={out}/model"
    " --num_train_steps=2",
    "evaluate": "--model_dir={in}/model --data_dir={in}/data",
    "fill-mask": "--model_dir={in}/model --text=日本の[MASK]",
    "report": "--model_dir={in}/model --output={out}/report.html",
    "export": "--model_dir={in}/model --output_dir={out}/hf --parity_sequences=0",
    "launch": "--config={in}/config.yaml --dry_run",
}
LONG = frozenset({"preflight", "demo"})  # a good invocation of these is not run to its end
REFUSED = frozenset({2})
# Not needed; refused; a model of default size, more than a small machine has; failing storage.
DAMAGED = frozenset({0, 2, 71, 74})
# What `plan` reads of a file of `preflight --output`; the numbers are of no model.
_CHIP = {
    "chip": "v3",
    "fits": True,
    "seq_length": 256,
    "batch_per_core": 1,
    "priced_cycles": 1e7,
    "tokens_per_second_per_core": 1e5,
}


@dataclass(frozen=True)
class Case:
    """One invocation and how it may end.

    Args:
        name: what is hostile, in a few words; unique.
        command: the command.
        arguments: its words; {in} and {out} are filled in.
        statuses: the exit statuses that are right.
        prepare: called with the folders of inputs and outputs before the command runs.
        obeys_permissions: root is refused what it may not read or write, as any user.
        other_result: where it is taken, its results may be others than those of the good one.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    statuses: frozenset[int] = REFUSED
    prepare: Callable[[Path, Path], None] | None = None
    obeys_permissions: bool = False
    other_result: bool = False


def good_arguments(command):
    """Returns the words of the good invocation."""
    return GOOD[command].split(" ")


def sample_of(cases, share, seed):
    """Draws one in `share` of the cases, rounded up, by their names hashed with the seed."""

    def place(case):
        return hashlib.blake2b(f"{seed} {case.command} {case.name}".encode()).digest()

    drawn = sorted(cases, key=place)
    return drawn[: -(-len(drawn) // share)]


def make_inputs(place, run):
    """Copies a small run to `place`, with a config and preflight figures beside it."""
    place.mkdir(parents=True)
    shutil.copytree(run.data_dir, place / "data")
    shutil.copytree(run.model_dir, place / "model")
    shutil.copy(run.corpus, place / "corpus.jsonl")
    for suffix in (".model", ".vocab", ".json"):
        shutil.copy(Path(run.tokenizer).with_suffix(suffix), place / f"ja{suffix}")
    sections = {}
    for item in SETTINGS:
        key, _, value = item.removeprefix("--set=").partition("=")
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    lines = (f"{name}: {{{_flow(values)}}}\n" for name, values in sections.items())
    (place / "config.yaml").write_text("".join(lines), "utf-8")
    (place / "preflight.json").write_text(json.dumps({"chips": [_CHIP]}), "utf-8")
    return place


def _flow(values):
    return ", ".join(f"{name}: {value}" for name, value in values.items())


# --- damaged files ---


def file_cases(inputs):
    """Damages each file that lies in `inputs` now and that a command is given."""
    for command in GOOD.keys() - LONG:
        words = tuple(good_arguments(command))
        for file in _files_of(command, inputs):
            name = str(file.relative_to(inputs))
            # Without its sidecar it is no checkpoint: the one before it is taken.
            is_sidecar = file.match("model.ckpt-*.json")
            for how, damage in {**_DAMAGES, **dict(_damages_of_json(file))}.items():
                yield Case(
                    f"{name} {how}",
                    command,
                    words,
                    DAMAGED,
                    functools.partial(_apply, name, damage),
                    obeys_permissions=how == "unreadable",
                    other_result=how == "missing" and is_sidecar,
                )


def _files_of(command, inputs):
    """Lists files that the good invocation names, and those in folders that it names."""
    for word in good_arguments(command):
        place = word.split("=", 1)[-1]
        if place.startswith("{in}/"):
            path = inputs / place.removeprefix("{in}/")
            yield from sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]


def _apply(name, damage, inputs, outputs):
    damage(inputs / name)


def _replaced(data):
    def replace(path):
        path.unlink()
        path.write_bytes(data)

    return replace


def _truncated(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


def _flipped(path):
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _folder(path):
    path.unlink()
    path.mkdir()


def _fifo(path):
    path.unlink()
    os.mkfifo(path)


def _link(to):
    """Puts a symbolic link in its place; None: to itself."""

    def link(path):
        path.unlink()
        path.symlink_to(to or path.name)

    return link


_DAMAGES = {
    "missing": Path.unlink,
    "empty": _replaced(b""),
    "truncated": _truncated,
    "flipped": _flipped,
    "a folder": _folder,
    "a FIFO": _fifo,
    "a symlink loop": _link(None),
    "a device": _link("/dev/zero"),
    "unreadable": functools.partial(Path.chmod, mode=0),
    "binary": _replaced(bytes(range(256)) * 40),
    "UTF-16": _replaced("日本語".encode("utf-16")),
    "deep": _replaced(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "another object": _replaced(b'{"made_by": "somebody else", "version": 1}\n'),
    # A hole costs no disk, but more memory than a case has if it is read whole.
    "huge": lambda path: os.truncate(path, 64 * 2**30),
}


def _damages_of_json(file):
    """Removes each key at the top, or gives it a value of another type."""
    if file.suffix not in (".json", ".jsonl"):
        return
    first, _, rest = file.read_text("utf-8").partition("\n" if file.suffix == ".jsonl" else "\0")
    for key, here in json.loads(first).items():
        if file.name.startswith("corpus.") and key != "text":
            continue  # a corpus may have other keys, with anything in them
        for value in (GONE, None, [], "x", -1, 2**70, float("nan")):
            if type(value) is not type(here):
                text = json.dumps(changed(json.loads(first), (key,), value))
                how = "is gone" if value is GONE else f"is {value!r}"
                yield f"{key} {how}", _replaced(f"{text}\n{rest}".encode())


# --- folders of other tools ---

# Folder -> its files. Their content matters little: no command may believe a name.
FOLDERS = {
    "TensorFlow 1": "checkpoint graph.pbtxt model.ckpt-1000.index model.ckpt-1000.meta"
    " model.ckpt-1000.data-00000-of-00001 events.out.tfevents.1",
    "Estimator": "checkpoint model.ckpt-500.index model.ckpt-500.data-00000-of-00001"
    " eval/events.out.tfevents.2 export/1700000000/saved_model.pb graph.pbtxt",
    "BERT": "bert_config.json vocab.txt bert_model.ckpt.index bert_model.ckpt.meta",
    "PyTorch": "model.pt last.ckpt optimizer.pth config.yaml metrics.jsonl",
    "Hugging Face": "config.json model.safetensors pytorch_model.bin tokenizer.json"
    " tokenizer_config.json spiece.model README.md .gitattributes",
    "git": ".git/HEAD .git/objects/ab/cd .gitignore src/main.py README.md",
    "home": ".bashrc .ssh/id_ed25519 .config/gcloud/credentials.db thesis.tex",
    "names of ours": "config.yaml heartbeat.json metrics.jsonl events.jsonl eval.jsonl"
    " tokenizer.model tokenizer.vocab tokenizer.json manifest.json export.json"
    " train-00000-of-00004.tfrecord eval-00000-of-00004.tfrecord model.ckpt-6.json"
    " model.ckpt-6.index model.ckpt-6.data-00000-of-00001 damaged-model.ckpt-4.index"
    " .make-data/owned.json .scratch-1/model .tmp-config.yaml~1 corpus.jsonl report.html"
    " figures.json demo.json run/config.yaml",
    "unknown mark": ".bigbird-ja.json model.safetensors manifest.json config.yaml",
}
# The flags of outputs, of a folder and of a single file.
_FOLDER_FLAGS = ("--work_dir", "--output_dir", "--model_dir", "--dump_hlo", "--data_dir")
_FILE_FLAGS = ("--output", "--output_prefix")
_OVERWRITE = frozenset({"make-data", "pretrain", "export", "sample", "tokenize"})


def folder_cases():
    """Gives folders of other tools as each output, MODEL_DIR and DATA_DIR."""
    for tool, names in FOLDERS.items():
        prepare = functools.partial(_make_folder, tool)
        for command in GOOD:
            for word in good_arguments(command):
                flag = word.partition("=")[0]
                reads = "{in}" in word
                if flag in _FOLDER_FLAGS and not (reads and command in LONG):
                    for words in _with(command, flag, "{out}/there", overwrite=not reads):
                        yield Case(
                            f"{words[-1]} {flag} of {tool}", command, words, REFUSED, prepare
                        )
                if flag in _FILE_FLAGS:  # a name that is free in such a folder may be taken
                    statuses = REFUSED if command in LONG else DAMAGED
                    for file in names.split():
                        path = "{out}/there/" + file
                        for words in _with(command, flag, path.removesuffix(".model")):
                            name = f"{words[-1]} {file} of {tool}"
                            yield Case(name, command, words, statuses, prepare)


def _with(command, flag, value, overwrite=True):
    """Gives the good invocation another value of a flag, also with --overwrite where it has it."""
    kept = [word for word in good_arguments(command) if not word.startswith(f"{flag}=")]
    yield (*kept, f"{flag}={value}")
    if overwrite and command in _OVERWRITE:
        yield (*kept, f"{flag}={value}", "--overwrite")


def _make_folder(tool, inputs, outputs):
    for name in FOLDERS[tool].split():
        path = outputs / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{tool}: {name}\n", "utf-8")
