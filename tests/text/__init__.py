"""Test texts from tests/fixtures/*.json, and functions that write and read texts."""

import json

from bigbird_ja.text.corpus import open_corpus
from testkit import ROOT

HARD = json.loads((ROOT / "tests/fixtures/hard-texts.json").read_text("utf-8"))
BOUNDARIES = json.loads((ROOT / "tests/fixtures/boundaries.json").read_text("utf-8"))


def texts(*sources, **about):
    """Return all texts of a corpus."""
    return list(open_corpus([str(source) for source in sources], **about).texts())


def lines_of(*texts):
    """Return the content of a .jsonl file with one line for each text."""
    return b"".join(json.dumps({"text": t}, ensure_ascii=False).encode() + b"\n" for t in texts)


def write(path, content):
    """Write a file, and return its path."""
    path.write_bytes(content)
    return str(path)
