"""Credentials, in the forms in which they come out of libraries, are masked; other text is not."""

import base64
import json
import re
import sys

import numpy as np
import pytest

from bigbird_ja.model_dir import log
from bigbird_ja.process.redact import REDACTED, redact
from bigbird_ja.process.streams import json_line
from testkit import ROOT, command_line

# Built from parts, so that no scanner takes the file of forms for a leak.
S, UP = "s3cr3tSECRETs3cr3t", "S3CR3TSECRETS3CR3T"
HEX32 = "0123456789abcdef0123456789abcdef"
KEY = "PRIVATE" + " KEY"
JSON = f'{{\n  "type": "service_account",\n  "private_key_id": "{HEX32}"\n}}'
PARTS = {
    "S": S,
    "UP": UP,
    "HEX32": HEX32,
    "HEX40": HEX32 + "01234567",
    "KEY": KEY,
    "COM": "com",
    "AKIA": "AKIA" + "IOSFODNN7SECRET1",
    "GOOG": "GOOG" + "TS7C7FUP3AIRVJTE2BCDKINBTES3HC2GY5C",
    "MIXED": "bGoa+V7g/yqDXvKRqq+JTFn4uQZbPiQJo4pf9RzJ",
    "SA64": base64.b64encode(JSON.encode()).decode(),
}


def filled(form):
    """Fill a line of the file of forms with its parts."""
    text = re.sub("«(\\w+)»", lambda place: PARTS[place[1]], form)
    return text if "\\\\n" in form else text.replace("\\n", "\n")


FIXTURES = ROOT / "tests/fixtures"
FORMS = (FIXTURES / "credentials.txt").read_text("utf-8").splitlines()
INNOCENT = [*map(filled, (FIXTURES / "no-credentials.txt").read_text("utf-8").splitlines())]
SECRETS = [filled(form) for form in FORMS]
HIDDEN = [S, UP, HEX32, "two words", "hunter2", "dXNlcjp", "SECRET1", "TS7C7F", "bGoa+", "ewogICJ0"]


@pytest.mark.parametrize("form", FORMS)
def test_a_credential_is_masked(form):
    cleaned = redact(filled(form))
    assert not [part for part in HIDDEN if part in cleaned] and REDACTED in cleaned
    assert redact(cleaned) == cleaned
    embedded = redact(f"RuntimeError: could not open gs://b/o: {filled(form)}")
    assert not [part for part in HIDDEN if part in embedded]
    assert embedded.startswith("RuntimeError: could not open gs://b/o: ")


def test_other_text_names_and_addresses_are_unchanged():
    text = f"GET https://me@x/o?X-Goog-Signature={S}&alt=media with MY_TOKEN={S} gave 403"
    assert redact(text) == f"GET https://me@x/o?{REDACTED} with MY_TOKEN={REDACTED} gave 403"
    assert [redact(text) for text in INNOCENT] == INNOCENT
    for pattern in ("bigbird_ja/**/*.yaml", "bigbird_ja/**/*.sh"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert redact(text) == text, path


def test_colors_and_a_lack_of_digits_hide_nothing():
    for secret in (
        f"password=\x1b[31m{S}\x1b[0m",
        f"pass\x1b[1mword: {S}",
        "hf_abcdEFGHijklMNOPqr",
    ):
        cleaned = redact(secret)
        assert REDACTED in cleaned and S not in cleaned and "EFGH" not in cleaned
    assert redact("\x1b[33mwarning: slow\x1b[0m") == "\x1b[33mwarning: slow\x1b[0m"


def test_a_credential_is_masked_at_any_place_in_long_text():
    for before in range(960, 1010, 7):
        for separator in (" ", "\n", "。"):
            text = "x" * before + separator + f"password={S} {S * 80}&a"
            assert S not in redact(text), (before, separator)


@pytest.mark.timeout(60)  # a quadratic pattern would take minutes
def test_a_credential_after_long_repetitions_is_masked_in_linear_time():
    units = ["a", "a.", "a-", "token ", "password", "password='", "://a:", "eyJ", "wandb ", "-"]
    units += ["://", "://a?", "\\", '"', "Cookie: a=b;", "--user ", f"-----BEGIN {KEY}-----"]
    units += ["key=", "KEY_", "a:", "hook/", "a1B2", "login a ", "x%3A%2F%2F", "-u"]
    for unit in units:
        assert S not in redact(f"{unit * (10_000 // len(unit))} password={S}"), unit


PROGRAM = """
import logging, sys, threading
from bigbird_ja.process import streams
streams.prepare()
secret = sys.argv[1]
logging.basicConfig(stream=sys.stderr)
logging.getLogger("a.library").warning("sent %s", secret)
print("HF_TOKEN=", secret.partition("=")[2], file=sys.stderr)  # in two writes
def fail(): raise RuntimeError(secret)
thread = threading.Thread(target=fail); thread.start(); thread.join()
fail()
"""


def test_output_of_python_itself_is_masked():
    done = command_line.run(sys.executable, "-c", PROGRAM, SECRETS[0])
    assert S not in done.stderr and done.stderr.count(REDACTED) == 4, done.stderr


def test_json_has_plain_numbers_and_no_credential():
    array = np.array([1.0, np.inf], np.float32)
    odd = {"nan": float("nan"), "array": array, "scalar": np.float32(1.5), "name": "\udcff"}
    held = {"nan": None, "array": [1.0, None], "scalar": 1.5, "name": "\udcff", "error": REDACTED}
    assert json.loads(json_line({**odd, "error": S})) == held


def test_logs_of_a_run_are_masked(tmp_path):
    message = f"RuntimeError: {SECRETS[0]}"
    log.EventLog(str(tmp_path)).append("failed", message=message, deep={"list": [message]})
    log.Heartbeat(str(tmp_path), "run").update({"state": "stopped", "message": message})
    log.append_eval(str(tmp_path), {"step": 1, "note": message})
    for name in (log.EVENTS, log.HEARTBEAT, log.EVAL):
        text = (tmp_path / name).read_text()
        assert S not in text and REDACTED in text
