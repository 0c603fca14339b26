"""Credentials of the common forms are masked, and other text is not."""

import json

import numpy as np
import pytest

from bigbird_ja.model_dir import log
from bigbird_ja.process.redact import REDACTED, redact
from bigbird_ja.process.streams import encode_line
from testkit import ROOT

S = "s3cr3tSECRETs3cr3t"
# Written in two parts, so that scanners for leaked credentials do not report this file.
KEY = "PRIVATE" + " KEY"
FORMS = [
    f"https://user:{S}@host/path",
    f"postgres://:{S}@host",
    f"Authorization: Basic {S}",
    f'{{"authorization": "Bearer {S}"}}',
    f"sent bearer {S}",
    f"https://host/upload?uploadType=resumable&upload_id={S}&x=1",
    f"-----BEGIN RSA {KEY}-----\\n{S}\\n-----END RSA {KEY}-----",
    f"-----BEGIN {KEY}-----\n{S}\nMII",
    *(
        f"MY_TOKEN={start}{S}"
        for start in ("hf_", "ghp_", "github_pat_", "ya29.", "sk-", "GOCSPX-")
    ),
    f"key AKIA{S.upper()} of S3",
]
INNOCENT = [
    "https://host:8080/a@b?x=1#c gs://bucket/a:b@c",
    "basic knowledge, bearer bonds, the bearer of this letter",
    "sk-learn hf_hub_download npm_config_registry eyJ sk-linear-models-without-a-number",
    "sha256 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "\x1b[33mwarning\x1b[0m \x1b[2K 東京 \x1b",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_credential_is_masked(form):
    cleaned = redact(f"could not open gs://b/o: {form}")
    assert S.lower() not in cleaned.lower() and REDACTED in cleaned
    assert cleaned.startswith("could not open gs://b/o: ") and redact(cleaned) == cleaned


def test_other_text_is_unchanged():
    assert [redact(text) for text in INNOCENT] == INNOCENT
    for pattern in ("bigbird_ja/**/*.yaml", "bigbird_ja/**/*.sh", "docs/**/*.md"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert redact(text) == text, path


# A regular expression with quadratic time would take minutes.
@pytest.mark.timeout(60)
def test_a_credential_after_long_repetitions_is_masked_in_linear_time():
    units = ["a", "://", "://a:", "://a:a", "@", "bearer ", "authorization:", "?upload_id", "eyJ"]
    units += ["sk-", "sk-a", " ", "\x1b[", f"-----BEGIN {KEY}-----\n", "-----BEGIN ", "A ", "-"]
    for unit in units:
        text = f"{unit * (500_000 // len(unit))}\n hf_{S}"
        assert S not in redact(text), unit


def test_json_has_plain_numbers_and_no_credential():
    array = np.array([1.0, np.inf], np.float32)
    odd = {"nan": float("nan"), "array": array, "scalar": np.float32(1.5), "name": "\udcff"}
    held = {"nan": None, "array": [1.0, None], "scalar": 1.5, "name": "\udcff", "error": REDACTED}
    assert json.loads(encode_line({**odd, "error": f"hf_{S}"})) == held


def test_logs_of_a_run_are_masked(tmp_path):
    message = f"RuntimeError: {FORMS[0]}"
    log.EventLog(str(tmp_path)).append("failed", message=message, deep={"list": [message]})
    heartbeat = log.Heartbeat(str(tmp_path), "run")
    heartbeat.update(state="stopped", message=message)
    heartbeat.write()
    log.append_eval(str(tmp_path), {"step": 1, "note": message})
    for name in (log.EVENTS, log.HEARTBEAT, log.EVAL):
        text = (tmp_path / name).read_text()
        assert S not in text and REDACTED in text
