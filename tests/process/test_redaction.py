"""Credentials, in the forms in which they come out of libraries, are masked; other text is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bigbird_ja.process.redaction import MASK, redact
from bigbird_ja.run import log
from testkit import ROOT

# Built from parts, so that no scanner takes this file for a leak. `S` is in every credential.
S = "s3cr3tSECRETs3cr3t"
HEX40, HEX32 = "0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef"
KEY = "PRIVATE" + " KEY"

SECRETS = [
    # By name.
    f"HF_TOKEN={S}", f"export WANDB_API_KEY='{HEX40}'", f"KAGGLE_KEY={HEX32}",
    f'{{"username":"me","key":"{HEX32}"}}', f"AWS_SECRET_ACCESS_KEY={S}/x+y",
    f"aws_secret_access_key = {S}", f"AccountName=x;AccountKey={S}==;EndpointSuffix=y",
    f"Password: {S}", "db_password=hunter2", "SMTP_PASS=hunter2", '"password": "two words"',
    '{\\"password\\": \\"two words\\"}', "('password', 'two words')",
    "{b'password': b'two words'}", f"passphrase: {S}", f"--password {S}", f"--token {S}",
    f"--api-key={S}", f"curl -u me:{S} https://x", f'"client_secret": "{S}"', f"clientSecret={S}",
    f'{{"refresh_token": "{S}"}}', f"access_token%3D{S}", f"//registry.npmjs.org/:_authToken={S}",
    f'"auth": "{S}"',
    # Headers.
    f"Authorization: Bearer {S}", f"sent Bearer {S}", f"{{'Authorization': 'Bearer {S}'}}",
    f"(b'authorization', b'Bearer {S}')", "Authorization: Basic dXNlcjpzM2NyM3RTRUNSRVQ=",
    f'Authorization: Digest username="me", response="{S}"', f"Authorization: {S}",
    f"Cookie: a=1; session={S}; b=2", f"{{'Set-Cookie': 'sid={S}; HttpOnly'}}", f"X-Api-Key: {S}",
    f"('x-goog-api-key', '{S}')", f"PRIVATE-TOKEN: {S}",
    # URLs lose user, password and query.
    f"https://storage.googleapis.com/b/o?X-Goog-Signature={S}&X-Goog-Expires=1",
    f"https://www.googleapis.com/upload/b/o?uploadType=resumable&upload_id={S}",
    f"http://localhost:1/?state=1&code={S}", f"https://user:{S}@proxy.example.com:8080/",
    f"https://{S}@host/", f"https://user:p@{S}@host/", f"redis://:{S}@host:6379/0",
    f"https://hooks.slack.com/services/T000/B000/{S}",
    # By form.
    "the token hf_" + S, f"ya29.a0AfH6SMBx_{S}-9 expired", "1//0" + S * 2, "key=AIza" + S * 2,
    "GOCSPX-" + S, "GOOG1E" + S, "ghp_" + S, "github_pat_" + S, "glpat-" + S, "xoxb-1234-" + S,
    "AKIA" + "IOSFODNN7SECRET1", "sk-proj-" + S, "sk_live_" + S, "npm_" + S,
    "pypi-AgEIcHlwaS5vcmc" + S, "eyJhbGciOiJSUzI1NiJ9.eyJzZWNyZXQiOjF9." + S,
    f"wandb: api key {HEX40} is wrong", f"-----BEGIN {KEY}-----\nMIIE{S}\n-----END {KEY}-----",
    f"-----BEGIN EC {KEY}-----\n{S}", f"-----BEGIN PGP {KEY} BLOCK-----\n{S}",
    f'{{"private_key_id": "{S}", "private_key": "-----BEGIN {KEY}-----\\n{S}'
    f'\\n-----END {KEY}-----\\n", "client_email": "a@b.iam.gserviceaccount.com"}}',
]  # fmt: skip

INNOCENT = [
    "/etc/passwd: Permission denied",
    "gs://bucket/run/model.ckpt-100.index: 503",
    "tokens_per_second: 1234.5, tokens=65536, num_tokens = 4096, key: value",
    '{"token": "▁the", "token_str": "antidisestablishmentarianism"}',
    '{"pad_token": "<pad>", "mask_token": "[MASK]", "unk_token": "<unk>"}',
    "max_predictions_per_seq=600: the secret of a good mask",
    "東京は日本の首都です。",
    "set HF_TOKEN=<your token> or WANDB_API_KEY=$KEY, password=None",
    'header "Authorization: Bearer $token"',
    "basic information about JavaScript; a bearer token is missing",
    "http://127.0.0.1:8080/storage/v1/b/x@y/o/name",
    "git@github.com:owner/repository.git",
    f"sha256 {HEX40}{HEX40[:24]}, crc32c yZRlqg==, commit {HEX40}",
    f'{{"config_fingerprint": "{HEX32}{HEX32}", "data_fingerprint": "{HEX40}"}}',
    "authorization failed: check your credentials; a cookie: a small cake; the key: no such file",
    "scikit-learn sk-learn-like-interface-names-here hf_model/wiki40b/config.json",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/me/key.json",
    "--set model.num_layers=6 --json --user_defined_symbols=a:b",
    "2024-01-02 03:04:05 run-1: preempted, zone us-central1-a, time 1700000000.123",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_credential_is_masked(text: str) -> None:
    cleaned = redact(text)
    for part in (S, HEX40, HEX32, "two words", "hunter2", "dXNlcjp", "SECRET1"):
        assert part not in cleaned
    assert MASK in cleaned
    assert redact(cleaned) == cleaned
    embedded = redact(f"RuntimeError: could not open gs://b/o: {text}")
    assert S not in embedded and embedded.startswith("RuntimeError: could not open gs://b/o: ")


def test_other_text_names_and_addresses_are_left_alone() -> None:
    text = f"GET https://me@x/o?X-Goog-Signature={S}&alt=media with MY_TOKEN={S} gave 403"
    assert redact(text) == f"GET https://{MASK}@x/o?{MASK} with MY_TOKEN={MASK} gave 403"
    assert [redact(text) for text in INNOCENT] == INNOCENT
    for pattern in ("bigbird_ja/**/*.yaml", "bigbird_ja/**/*.sh"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert redact(text) == text, path


def test_long_text_takes_no_longer_than_its_length() -> None:
    units = ["a", "a.", "a-", "token ", "password", "password='", "://a:", "eyJ", "wandb ", "-"]
    units += ["://", "://a?", "\\", '"', "Cookie: a=b;", "--user ", f"-----BEGIN {KEY}-----"]
    for unit in units:  # a quadratic pattern would take minutes for these
        redact(unit * (30_000 // len(unit)))


PROGRAM = """
import logging, sys, threading
from bigbird_ja.process.streams import Streams
Streams()
secret = sys.argv[1]
what = sys.argv[2]
if what == "log":
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("a.library").warning("sent %s", secret)
elif what == "thread":
    def fail(): raise RuntimeError(secret)
    thread = threading.Thread(target=fail); thread.start(); thread.join()
else:
    raise RuntimeError(secret)
"""


@pytest.mark.parametrize("what", ["log", "thread", "uncaught"])
def test_nothing_that_python_prints_by_itself_holds_a_credential(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, SECRETS[0], what],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert S not in done.stderr and MASK in done.stderr, done.stderr


def test_a_bug_of_a_command_is_masked_on_the_screen_and_in_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testkit.any_command", "secret", "--json"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert "hf_abc" not in done.stderr + done.stdout
    assert MASK in json.loads(done.stdout)["error"]


def test_what_a_run_writes_about_itself_is_masked(tmp_path: Path) -> None:
    message = f"RuntimeError: {SECRETS[0]}"
    log.append_event(str(tmp_path), "failed", message=message, deep={"list": [message]})
    log.Heartbeat(str(tmp_path), "run").write(state="stopped", message=message)
    log.append_eval(str(tmp_path), {"step": 1, "note": message})
    for name in (log.EVENTS, log.HEARTBEAT, log.EVAL):
        text = (tmp_path / name).read_text()
        assert S not in text and MASK in text
