"""A full disk, by a limit on file sizes that the kernel enforces on real commands."""

import os
import sys

import pytest

from testkit import command_line

FULL_DISK = {
    "sample": "--output={out}/new/x.jsonl --documents=40",
    "tokenize": "--input={corpus} --output_prefix={out}/new/x --vocab_size=1200",
    "make-data": "--input={corpus} --tokenizer={tokenizer} --output_dir={out}/new/data"
    " --seq_length=256 --num_workers=1",
}


@pytest.mark.parametrize("command", FULL_DISK)
def test_a_full_disk_is_74(sample_corpus, tokenizer_path, tmp_path, command):
    given = {"corpus": sample_corpus, "tokenizer": tokenizer_path}
    words = FULL_DISK[command].format(out=tmp_path, **given)
    line = f"ulimit -f 8; exec {sys.executable} -m bigbird_ja {command} {words} --json"
    ended = command_line.run("bash", "-c", line)
    assert ended.status == 74, ended.stderr
    assert ended.json["reason"] == "io_error" and "{{" not in ended.json["error"]
    assert f"disk full: {tmp_path}/new/" in ended.json["error"]
    # For the next try: what make-data has finished, and the record of the model to be written.
    kept = command in ("make-data", "tokenize")
    assert os.listdir(tmp_path) == (["new"] if kept else [])
