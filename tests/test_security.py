"""What must never be in the code, and what must never be in a file that a run leaves."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bigbird_ja.cli import command_flags, main
from bigbird_ja.process.errors import BadInput
from bigbird_ja.process.redaction import redact
from bigbird_ja.settings.resolve import resolve_config
from testkit import ROOT
from testkit.fakes.gcs_process import FakeGcs

SOURCES = sorted((ROOT / "bigbird_ja").rglob("*.py")) + sorted((ROOT / "scripts").rglob("*.py"))
_UNPICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
_SECRET_FLAG = r"(access|auth|id)_token|password|secret|credential|private|api_key"
_RUNS_TEXT = {"eval", "exec", "compile", "__import__"}


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _is_true(call: ast.Call, name: str) -> bool:
    return any(
        k.arg == name and not (isinstance(k.value, ast.Constant) and k.value.value is False)
        for k in call.keywords
    )


def _is_filtered(call: ast.Call) -> bool:
    """Whether an archive's members are kept in its folder: `filter="data"` (PEP 706)."""
    values = [k.value for k in call.keywords if k.arg == "filter"]
    return [getattr(value, "value", None) for value in values] == ["data"]


def _complaints(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            for name in names:
                if name.partition(".")[0] in _UNPICKLES:
                    yield f"{path}:{node.lineno}: imports {name}"
    for name, call in _calls(tree):
        where, last = f"{path}:{call.lineno}", name.rpartition(".")[2]
        if name in _RUNS_TEXT:
            yield f"{where}: {name}()"
        if name in ("os.system", "os.popen", "tempfile.mktemp"):
            yield f"{where}: {name}()"
        if _is_true(call, "shell"):
            yield f"{where}: shell="
        if _is_true(call, "allow_pickle"):
            yield f"{where}: allow_pickle="
        if last in ("load", "load_all", "full_load", "unsafe_load") and name.startswith("yaml."):
            yield f"{where}: {name}() instead of safe_load"
        if name in ("torch.load", "pd.read_pickle") and not _is_true(call, "weights_only"):
            yield f"{where}: {name}() unpickles"
        if last in ("extractall", "unpack_archive") and not _is_filtered(call):
            yield f"{where}: {name}() may leave its directory"
        if last == "chmod" and any(
            isinstance(a, ast.Constant) and isinstance(a.value, int) and a.value & 0o022
            for a in call.args
        ):
            yield f"{where}: writable by others"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled_evaluated_or_handed_to_a_shell(path: Path) -> None:
    assert list(_complaints(path)) == []


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import pickle\nimport yaml, os, subprocess, numpy as np\n"
        "eval('1')\nyaml.load(x)\nos.system('x')\nsubprocess.run('x', shell=True)\n"
        "np.load('x', allow_pickle=True)\ntar.extractall()\nos.chmod('x', 0o777)\n"
    )
    assert len(list(_complaints(bad))) == 8


@pytest.mark.parametrize("name", main.COMMANDS)
def test_no_flag_takes_a_credential(name: str) -> None:
    # What is in a flag is in the process list, for every user of the machine to read.
    for flag in command_flags.flags_of(main.load_command(name)):
        assert not re.search(_SECRET_FLAG, flag), flag


@pytest.mark.parametrize("kind", [RuntimeError, BadInput])
def test_no_ending_prints_a_credential(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> None:
        raise kind("sent Bearer ya29.very-secret to the bucket")

    monkeypatch.setattr(main, "load_command", fail)
    main.run_command_line(["plan", "--json"])
    said = capsys.readouterr()
    assert "very-secret" not in said.out + said.err and "[redacted]" in said.out


def test_yaml_cannot_make_objects(tmp_path: Path) -> None:
    for tag in ("!!python/object/apply:os.system ['true']", "!!python/name:os.system"):
        path = tmp_path / "bad.yaml"
        path.write_text(f"model: {tag}\n")
        with pytest.raises(BadInput, match="not YAML"):
            resolve_config(str(path), [], {})


def test_a_server_that_echoes_secrets_does_not_get_them_into_the_message(
    bucket: str, fake_gcs: FakeGcs
) -> None:
    from google.api_core import exceptions

    from bigbird_ja.storage import retry

    class Response:
        """An answer that repeats what it was sent."""

        def json(self) -> dict[str, dict[str, str]]:
            return {"error": {"message": "bad header Authorization: Bearer ya29.secret"}}

    error = exceptions.Forbidden("POST https://x?upload_id=secret: Bearer ya29.secret")
    error._response = Response()
    assert "secret" not in retry.reason(error)
    told = retry.translate(error, f"{bucket}/x")
    assert "secret" not in str(told)


def test_files_are_not_writable_by_others(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "os.umask(0o022)\n"
        "from bigbird_ja import cli\n"
        "sys.exit(cli.run_command_line(['sample', '--output', sys.argv[1], '--documents', '2']))\n"
    )
    path = tmp_path / "sub" / "ja.jsonl"
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True)
    for made in (path, path.parent):
        assert made.stat().st_mode & 0o022 == 0


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


def test_presets_hold_nothing_but_settings() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert isinstance(yaml.safe_load(text), dict) and redact(text) == text
