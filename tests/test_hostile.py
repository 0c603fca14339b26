"""A command refuses a damaged input file in one line, or does not need the damaged part.

A case is a command, one file in its input folders, and one kind of damage. Since all files in these
folders are listed, a new file needs no new test. The test draws a fixed sample of the cases. The
environment variable BIGBIRD_JA_HOSTILE_SEED selects another sample, and `make bench-bad-input`
tests all cases.
"""

import functools
import os
import random
import shutil
from pathlib import Path

import pytest

from bigbird_ja import cli
from bigbird_ja.errors import STATUS_OF_REASON
from bigbird_ja.storage.ownership import MANIFEST_NAME
from bigbird_ja.text import articles
from testkit import runs, tokenizer_folders

SEED = int(os.environ.get("BIGBIRD_JA_HOSTILE_SEED", "739943"))
SAMPLE = 24  # number of cases that are drawn
ALL = "BIGBIRD_JA_HOSTILE_ALL" in os.environ
# Valid flags of each command that reads files. The folder in/ contains a finished run with its
# inputs. The folder out/ is empty.
GOOD = {
    "tokenize": "--input=in/corpus.jsonl --output_prefix=out/ja --vocab_size=1200",
    "make-data": "--input=in/corpus.jsonl --tokenizer=in/ja.model --output_dir=out/data"
    " --seq_length=256 --num_shards=4 --eval_fraction=0.1",
    "check-data": "--data_dir=in/data",
    "trim": "--encoder=in/encoder --input=in/corpus.jsonl --output_dir=out/small --vocab_size=300",
    "config": "in/config.yaml",
    "plan": "--config=in/config.yaml --data_dir=in/data --preflight=in/preflight.json",
    "pretrain": "--config=in/config.yaml --data_dir=in/data --model_dir=out/model"
    " --num_train_steps=2",
    "evaluate": "--model_dir=in/model --data_dir=in/data",
    "fill-mask": "--model_dir=in/model --text=日本の[MASK]",
    "report": "--model_dir=in/model --output=out/report.html",
    "export": "--model_dir=in/model --output_dir=out/hf",
    "launch": "--config=in/config.yaml --max_cost=5 --dry_run",
}
# Commands that are not tested. They read no files, except `preflight`, which is slow and reads the
# same files as `plan`.
OTHERS = {"demo", "sample", "status", "logs", "down", "doctor", "preflight"}
# Accepted exit statuses. 0: the damage does not matter. 2: the file is refused. 71: reading the
# file needs more memory than there is. 74: the file cannot be read.
STATUSES = {0, 2, 71, 74}
TIMEOUT_SECONDS = 120.0
# Maximum address space of a command in bytes, in addition to that of TensorFlow. The limit stops a
# command that reads an endless device.
MEMORY = 6 * 2**30


def _flip(path):
    data = bytearray(path.read_bytes() or b"x")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _replace(act, path):
    path.unlink()
    act(path)


DAMAGES = {
    "missing": Path.unlink,
    "truncated": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "flipped": _flip,
    "a folder": functools.partial(_replace, Path.mkdir),
    "a FIFO": functools.partial(_replace, os.mkfifo),
    "a symlink loop": functools.partial(_replace, lambda path: path.symlink_to(path.name)),
    "a device": functools.partial(_replace, lambda path: path.symlink_to("/dev/zero")),
    "unreadable": functools.partial(Path.chmod, mode=0),
    # A sparse file needs no disk, but exceeds the memory limit if it is read completely.
    "huge": lambda path: os.truncate(path, 64 * 2**30),
}
CONTENTS = {
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "UTF-16": "日本語".encode("utf-16"),
    "deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "another object": b'{"made_by": "somebody else", "version": 1}\n',
}


def damage(path, how):
    if how in CONTENTS:
        path.write_bytes(CONTENTS[how])
    else:
        DAMAGES[how](path)


def files_of(command, place):
    """Yield all input files of a command in `GOOD`, including those in its input folders."""
    for word in GOOD[command].split():
        path = place / word.rpartition("=")[2]
        if path.is_relative_to(place / "in") and path.exists():
            yield from sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]


def listing(place):
    """Return the kind, size and modification time of every path in a folder."""
    stats = {path: path.lstat() for path in place.rglob("*")}
    return {
        str(path.relative_to(place)): (s.st_mode, path.is_dir() or (s.st_size, s.st_mtime_ns))
        for path, s in stats.items()
    }


def problem(ended, before, after):
    """Describe how the outcome of a command violates the rules, or return None if it does not.

    Args:
        ended: outcome of the command.
        before: result of `listing` before the command.
        after: result of `listing` after it.
    """
    last = (ended.err.rstrip().splitlines() or [""])[-1]
    if ended.status not in STATUSES or "Traceback (most recent call last)" in ended.err:
        return f"status {ended.status}: {last[:300]}"  # The status is None after a timeout.
    # `evaluate` may change these files: its results, and the manifest of MODEL_DIR.
    own = ("in/model/eval", "in/model/events.jsonl", f"in/model/{MANIFEST_NAME}")
    for name in before:
        if before[name] != after.get(name) and not (ended.status == 0 and name.startswith(own)):
            return f"changed an existing file: {name}"
    if ended.status == 0:
        return None
    lines = [line for line in ended.err.splitlines() if line.startswith("bigbird-ja: ")]
    if lines != [last] or len(last) > 1500:
        return f"not one clear line: {ended.err[-400:]!r}"
    if STATUS_OF_REASON[ended.result["reason"]] != ended.status:
        return f"status {ended.status} with {ended.result}"
    left = sorted(set(after) - set(before)) if ended.status in (2, 71) else ()
    return f"left behind: {left[:4]}" if left else None


def test_every_command_has_a_good_invocation():
    assert {*GOOD, *OTHERS} == {*cli.COMMANDS}


@pytest.mark.timeout(100_000 if ALL else 1200)
def test_a_damaged_file_is_refused_or_not_needed(zygote, small_run, tmp_path):
    inputs = runs.copy_inputs(small_run, tmp_path / "whole/in")
    tokenizer_folders.wordpiece(inputs / "encoder", list(articles.generate(10, seed=5)))
    tokenizer_folders.add_weights(inputs / "encoder", "bert")

    def run(command, name="", how=""):
        place = tmp_path / "case"
        shutil.copytree(inputs, place / "in")
        (place / "out").mkdir()
        if how:
            damage(place / name, how)
        before = listing(place)
        settings = {"cwd": str(place), "environ": {"HOME": str(tmp_path)}, "limits": {"AS": MEMORY}}
        started = zygote.start(command, *GOOD[command].split(), "--json", **settings)
        ended = started.wait(TIMEOUT_SECONDS)
        wrong = problem(ended, before, listing(place))
        shutil.rmtree(place)
        return ended.status, wrong

    cases = [
        (command, path.relative_to(inputs.parent), how)
        for command in GOOD
        for path in files_of(command, inputs.parent)
        for how in (*DAMAGES, *CONTENTS)
    ]
    print(f"BIGBIRD_JA_HOSTILE_SEED={SEED}: {SAMPLE} of {len(cases)} cases")
    drawn = cases if ALL else random.Random(SEED).sample(cases, SAMPLE)
    ends = {case: run(*case) for case in drawn}
    assert [(*case, wrong) for case, (_, wrong) in ends.items() if wrong] == []
    for command in {case[0] for case in drawn} - {c[0] for c, end in ends.items() if end[0] == 0}:
        assert run(command)[0] == 0, f"the good {command} fails, so all of its cases do"
