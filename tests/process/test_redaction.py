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

SECRETS = {
    # By name.
    "hf-env": f"HF_TOKEN={S}",
    "hub-env": f"HUGGING_FACE_HUB_TOKEN={S}",
    "wandb-env": f"WANDB_API_KEY={HEX40}",
    "wandb-env-quoted": f"export WANDB_API_KEY='{HEX40}'",
    "any-env": f"MY_TOKEN={S}",
    "ci-env": f"CI_REGISTRY_PASSWORD={S}",
    "google-env": f"GOOGLE_API_KEY={S}",
    "openai-env": f"OPENAI_API_KEY={S}",
    "aws-env": f"AWS_SECRET_ACCESS_KEY={S}/x+y",
    "aws-ini": f"aws_secret_access_key = {S}",
    "aws-session": f"aws_session_token={S}",
    "azure": f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={S}==;EndpointSuffix=y",
    "kaggle-env": f"KAGGLE_KEY_TOKEN={S}",
    "password": f"password={S}",
    "password-colon": f"Password: {S}",
    "password-short": "db_password=hunter2",
    "password-quoted": '"password": "two words"',
    "password-escaped": '{\\"password\\": \\"two words\\"}',
    "password-repr": "{'password': 'two words'}",
    "password-tuple": "('password', 'two words')",
    "password-bytes": "{b'password': b'two words'}",
    "passwd": f"passwd={S}",
    "pwd": f"pwd={S}",
    "passphrase": f"passphrase: {S}",
    "option": f"--password {S}",
    "option-token": f"--token {S}",
    "option-equals": f"--api-key={S}",
    "curl-user": f"curl -u me:{S} https://x",
    "netrc": f"machine api.wandb.ai login user password {S}",
    "secret": f"secret={S}",
    "client-secret": f'"client_secret": "{S}"',
    "client-secret-camel": f"clientSecret={S}",
    "refresh-token": f'{{"refresh_token": "{S}"}}',
    "access-token": f"access_token={S}",
    "access-token-encoded": f"access_token%3D{S}",
    "id-token": f"id_token: {S}",
    "npmrc": f"//registry.npmjs.org/:_authToken={S}",
    "docker": f'"auth": "{S}"',
    "kaggle-json": f'{{"username":"me","key":"{HEX32}"}}',
    # Headers.
    "bearer": f"Authorization: Bearer {S}",
    "bearer-alone": f"sent Bearer {S}",
    "bearer-repr": f"{{'Authorization': 'Bearer {S}'}}",
    "bearer-bytes": f"(b'authorization', b'Bearer {S}')",
    "basic": "Authorization: Basic dXNlcjpzM2NyM3RTRUNSRVQ=",
    "basic-alone": "with Basic dXNlcjpzM2NyM3RTRUNSRVQ= refused",
    "proxy": f"Proxy-Authorization: Negotiate {S}",
    "digest": f'Authorization: Digest username="me", response="{S}"',
    "aws-header": f"authorization: AWS4-HMAC-SHA256 Credential=AKIA/x, Signature={S}",
    "token-header": f"Authorization: token {S}",
    "raw-header": f"Authorization: {S}",
    "cookie": f"Cookie: a=1; session={S}; b=2",
    "set-cookie": f"Set-Cookie: sid={S}; Path=/; HttpOnly",
    "cookie-repr": f"{{'Cookie': 'sid={S}'}}",
    "api-key-header": f"X-Api-Key: {S}",
    "goog-api-key": f"('x-goog-api-key', '{S}')",
    "amz-token": f"X-Amz-Security-Token: {S}",
    "gitlab-header": f"PRIVATE-TOKEN: {S}",
    "auth-token-header": f"X-Auth-Token: {S}",
    # URLs.
    "goog-signed": f"https://storage.googleapis.com/b/o?X-Goog-Signature={S}&X-Goog-Expires=1",
    "goog-credential": f"https://x/o?X-Goog-Credential={S}%2F2024",
    "amz-signed": f"https://b.s3.amazonaws.com/o?X-Amz-Signature={S}&x=1",
    "sas": f"https://a.blob.core.windows.net/c?sv=2022&sig={S}%3D&se=1",
    "v2-signed": f"https://x/o?GoogleAccessId=a@b&Signature={S}",
    "upload": f"https://www.googleapis.com/upload/b/o?uploadType=resumable&upload_id={S}",
    "query-token": f"https://x/y?token={S}",
    "query-code": f"http://localhost:1/?state=1&code={S}",
    "userinfo": f"https://user:{S}@proxy.example.com:8080/",
    "userinfo-at": f"https://user:p@{S}@proxy.example.com:8080/",
    "userinfo-empty": f"redis://:{S}@host:6379/0",
    "slack-hook": f"https://hooks.slack.com/services/T000/B000/{S}",
    # By form.
    "hf": "the token hf_" + S,
    "google-access": f"token ya29.a0AfH6SMBx_{S}-9 expired",
    "google-refresh": "1//0" + S * 2,
    "google-key": "key=AIza" + S * 2,
    "google-client": "GOCSPX-" + S,
    "github": "ghp_" + S,
    "github-actions": "https://x-access-token:ghs_" + S + "@github.com/o/r",
    "github-fine": "github_pat_" + S + S,
    "gitlab": "glpat-" + S,
    "aws-id": "AKIA" + "IOSFODNN7SECRET1",
    "slack": "xoxb-1234-" + S,
    "openai": "sk-" + S,
    "openai-project": "sk-proj-" + S,
    "stripe": "sk_live_" + S,
    "npm": "npm_" + S + S,
    "pypi": "pypi-AgEIcHlwaS5vcmc" + S,
    "jwt": "eyJhbGciOiJSUzI1NiJ9.eyJzZWNyZXQiOjF9." + S,
    "wandb": f"wandb: api key {HEX40} is wrong",
    "wandb-login": f"wandb login {HEX40}",
    "pem": f"-----BEGIN {KEY}-----\nMIIE{S}\n-----END {KEY}-----",
    "pem-rsa": f"-----BEGIN RSA {KEY}-----\n{S}\n-----END RSA {KEY}-----",
    "pem-openssh": f"-----BEGIN OPENSSH {KEY}-----\n{S}\n-----END OPENSSH {KEY}-----",
    "pem-cut": f"-----BEGIN EC {KEY}-----\n{S}",
    "pgp": f"-----BEGIN PGP {KEY} BLOCK-----\n{S}\n-----END PGP {KEY} BLOCK-----",
    "service-account": f'{{"private_key_id": "{S}", "private_key": "-----BEGIN {KEY}-----\\n{S}'
    f'\\n-----END {KEY}-----\\n", "client_email": "a@b.iam.gserviceaccount.com"}}',
}  # fmt: skip

INNOCENT = [
    "/etc/passwd: the name is in use",
    "/etc/passwd: Permission denied",
    "open('/etc/passwd'): not a data set",
    "gs://bucket/run/model.ckpt-100.index: 503",
    "tokens 12345, key: value",
    "tokens_per_second: 1234.5, tokens=65536, num_tokens = 4096",
    '{"token": "東京", "probability": 0.25}',
    '{"token": "▁the", "token_str": "antidisestablishmentarianism"}',
    '{"pad_token": "<pad>", "mask_token": "[MASK]", "cls_token": "[CLS]", "unk_token": "<unk>"}',
    "max_predictions_per_seq=600: the secret of a good mask",
    "東京は日本の首都です。",
    "set HF_TOKEN=<your token> or WANDB_API_KEY=$KEY, password=None",
    'header "Authorization: Bearer $token"',
    "printf 'Authorization: Bearer %s' \"$token\"",
    "basic information about JavaScript; a bearer token is missing",
    "the bearer of this",
    "http://127.0.0.1:8080/storage/v1/b/x@y/o/name",
    "https://storage.googleapis.com/storage/v1/b/bucket/o?prefix=run%2F&fields=items",
    "git@github.com:owner/repository.git",
    f"sha256 {HEX40}{HEX40[:24]}, crc32c yZRlqg==, commit {HEX40}",
    f'{{"config_fingerprint": "{HEX32}{HEX32}", "data_fingerprint": "{HEX40}"}}',
    "authorization failed: check your credentials",
    "the key: no such file",
    "a cookie: a small cake",
    "scikit-learn sk-learn-like-interface-names-here",
    "credentials: run `gcloud auth application-default login`",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/me/key.json",
    "private_key_path: /home/me/.ssh/id_rsa",
    "--set model.num_layers=6 --json --user_defined_symbols=a:b",
    "2024-01-02 03:04:05 run-1: preempted, zone us-central1-a, time 1700000000.123",
    "wandb: run base-1 finished",
]  # fmt: skip


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_a_credential_is_masked(text: str) -> None:
    cleaned = redact(text)
    for part in (S, HEX40, HEX32, "two words", "hunter2", "dXNlcjp", "SECRET1"):
        assert part not in cleaned
    assert MASK in cleaned
    assert redact(cleaned) == cleaned
    embedded = redact(f"RuntimeError: could not open gs://b/o: {text}")
    assert S not in embedded and embedded.startswith("RuntimeError: could not open gs://b/o: ")


@pytest.mark.parametrize("text", INNOCENT)
def test_other_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


def test_the_rest_of_the_message_stays() -> None:
    text = f"GET https://x/o?X-Goog-Signature={S}&alt=media with Authorization: Bearer {S} gave 403"
    assert redact(text) == (
        f"GET https://x/o?X-Goog-Signature={MASK}&alt=media with Authorization: {MASK} gave 403"
    )


def test_presets_scripts_and_documents_are_innocent() -> None:
    for pattern in ("bigbird_ja/**/*.yaml", "bigbird_ja/**/*.sh", "docs/**/*.md", "README*.md"):
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert redact(text) == text, path


def test_long_text_takes_no_longer_than_its_length() -> None:
    units = ["a", "a.", "a-", "token ", "password", "password='", "://a:", "eyJ", "wandb ", "-"]
    units += ["\\", '"', "Cookie: a=b;", "login x password ", "--user ", f"-----BEGIN {KEY}-----"]
    for unit in units:  # a quadratic pattern would take minutes for these
        redact(unit * (30_000 // len(unit)))


PROGRAM = """
import logging, sys, threading, warnings
from bigbird_ja import redaction
redaction.install()
secret = sys.argv[1]
what = sys.argv[2]
if what == "log":
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("a.library").warning("sent %s", secret)
elif what == "log-exception":
    logging.basicConfig(stream=sys.stderr)
    try:
        raise RuntimeError(secret)
    except RuntimeError:
        logging.getLogger("a.library").exception("failed")
elif what == "log-misfit":
    logging.basicConfig(stream=sys.stderr)
    logging.getLogger("a.library").warning("%d of %d", "x")
    print("[redacted] and went on", file=sys.stderr)
elif what == "thread":
    def fail(): raise RuntimeError(secret)
    thread = threading.Thread(target=fail); thread.start(); thread.join()
elif what == "destructor":
    class Resource:
        def __del__(self): raise RuntimeError(secret)
    Resource()
elif what == "warning":
    warnings.warn(secret)
else:
    raise RuntimeError(secret)
"""


@pytest.mark.parametrize(
    "what", ["log", "log-exception", "log-misfit", "thread", "destructor", "uncaught", "warning"]
)
def test_nothing_that_python_prints_by_itself_holds_a_credential(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, SECRETS["hf-env"], what],
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
    message = f"RuntimeError: {SECRETS['hf-env']}"
    log.append_event(str(tmp_path), "failed", message=message, deep={"list": [message]})
    log.Heartbeat(str(tmp_path), "run").write(state="stopped", message=message)
    log.append_eval(str(tmp_path), {"step": 1, "note": message})
    for name in (log.EVENTS, log.HEARTBEAT, log.EVAL):
        text = (tmp_path / name).read_text()
        assert S not in text and MASK in text
