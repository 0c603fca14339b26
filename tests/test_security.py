"""Flags, error messages and the files of the repository contain no secrets.

The rules `S` of ruff check the code, and tests/process/test_redact.py checks the output.
"""

import re
import types

import pytest
from google.api_core import exceptions

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from bigbird_ja.storage import gcs
from testkit import command_line


def test_no_flag_takes_a_credential():
    # All users of a machine can read flags in its list of processes.
    secret = re.compile("(access|auth|id)_token|password|secret|credential|private|api_key")
    for name in cli.COMMANDS:
        for flag in command_flags.collect_flags(cli.load_command(name)):
            assert not secret.search(flag), flag


def test_secrets_that_a_server_echoes_are_not_in_the_message():
    sent = {"error": {"message": "bad header Authorization: Bearer ya29.secret"}}
    error = exceptions.Forbidden("POST https://x?upload_id=secret: Bearer ya29.secret")
    error._response = types.SimpleNamespace(json=lambda: sent)
    assert "secret" not in gcs.describe_fault(error)
    assert "secret" not in str(gcs.translate(error, "gs://bucket/x"))


def test_no_credentials_are_in_the_repository():
    forms = r"-----BEGIN PRIVATE[ ]KEY|\bya29\.[[:alnum:]_-]{20,}|\bAIza[[:alnum:]_-]{30,}"
    done = command_line.run("git", "grep", "-lE", "-e", forms)
    if done.status > 1:
        pytest.skip("not a git checkout")
    assert done.stdout == ""
