"""What must never be in a flag, a message or a file that a run leaves; ruff's `S` rules search the
code, tests/process/test_redaction.py what is printed."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from google.api_core import exceptions

from bigbird_ja.cli import command_flags, main
from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import gcs
from testkit import ROOT


def test_no_flag_takes_a_credential() -> None:
    # What is in a flag is in the process list, for every user of the machine to read.
    secret = re.compile("(access|auth|id)_token|password|secret|credential|private|api_key")
    for name in main.COMMANDS:
        for flag in command_flags.flags_of(main.load_command(name)):
            assert not secret.search(flag), flag


def test_no_refusal_prints_a_credential(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise BadInput("sent Bearer ya29.very-secret to the bucket")

    monkeypatch.setattr(main, "load_command", refuse)
    main.run_command_line(["plan", "--json"])
    printed = capsys.readouterr()
    assert "very-secret" not in printed.out + printed.err and "[redacted]" in printed.out


def test_a_server_that_echoes_secrets_does_not_get_them_into_the_message() -> None:
    class Response:
        """An answer that repeats what it was sent."""

        def json(self) -> dict[str, dict[str, str]]:
            return {"error": {"message": "bad header Authorization: Bearer ya29.secret"}}

    error = exceptions.Forbidden("POST https://x?upload_id=secret: Bearer ya29.secret")
    error._response = Response()
    assert "secret" not in gcs.reason(error)
    assert "secret" not in str(gcs.translate(error, "gs://bucket/x"))


def test_no_credentials_are_in_the_repository() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    own = os.path.relpath(__file__, ROOT)
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name in ("", own) or not path.is_file() or path.stat().st_size > 1_000_000:
            continue
        content = path.read_bytes()
        assert b"-----BEGIN PRIVATE" + b" KEY" not in content, name
        assert not re.search(rb"\bya29\.[\w-]{20,}|\bAIza[\w-]{30,}", content), name
