"""Texts that break tokenizers, and where sentences and words begin: tests/fixtures/*.json."""

import json

from testkit import ROOT

HARD = json.loads((ROOT / "tests/fixtures/hard-texts.json").read_text("utf-8"))
BOUNDARIES = json.loads((ROOT / "tests/fixtures/boundaries.json").read_text("utf-8"))
