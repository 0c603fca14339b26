"""Every flag that names an output: only what the command itself has made is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigbird_ja import storage
from tests.report import fake_run

# Command line, {o} the output; what is refused is refused before anything else is looked at.
FILES = (
    "report --model_dir={m} --output={o}",
    "plan --plot={o}",
    "evaluate --model_dir={m} --data_dir={m} --probe --plot={o}",
    "preflight --output={o}",
)
FOLDERS = (
    "preflight --dump_hlo={o}",
    "export --model_dir={m} --output_dir={o}",
    "export --model_dir={m} --output_dir={o} --overwrite",
    "demo --work_dir={o}",
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run.write(tmp_path_factory.mktemp("run") / "a", steps=400)


@pytest.fixture
def check_refused(model_dir, run):
    """`check_refused(command, output)`: in one line that begins with the flag of the output."""

    def check(command, output):
        words = command.split(" ")
        ended = run(*(word.format(m=model_dir, o=output) for word in words))
        (flag,) = (word.split("=")[0] for word in words if word.endswith("{o}"))
        assert ended.status == 2 and "Traceback" not in ended.stderr
        assert ended.stderr.splitlines()[-1].startswith(f"bigbird-ja: {flag} "), ended.stderr

    return check


def state(directory: Path) -> dict[str, object]:
    """What is in a folder; all of it but when it was read, which looking itself changes."""
    result: dict[str, object] = {}
    for path in directory.rglob("*"):
        about = os.lstat(path)
        owner = about.st_mode, about.st_ino, about.st_nlink, about.st_uid, about.st_gid
        content = path.read_bytes() if path.is_file() else None
        result[str(path)] = (*owner, about.st_size, about.st_mtime_ns, content)
    return result


@pytest.mark.parametrize("command", FILES + FOLDERS)
def test_what_others_made_is_left_alone(command, tmp_path, check_refused):
    (tmp_path / "folder").mkdir()
    for thesis in ("thesis", "folder/thesis"):
        (tmp_path / thesis).write_text("years of work")
    (tmp_path / "link").symlink_to("thesis")
    (tmp_path / "nowhere").symlink_to("none")
    # Once, a title or a word in the file's head was enough.
    (tmp_path / "like-our.html").write_text('<meta name="generator" content="bigbird-ja report">')
    (tmp_path / "like-our.png").write_bytes(b"\x89PNG Software\0bigbird-ja")
    names = os.listdir(tmp_path)
    before = state(tmp_path)
    for name in names:
        check_refused(command, f"{tmp_path}/{name}")
    assert state(tmp_path) == before


@pytest.mark.parametrize("command", FILES + FOLDERS)
def test_on_a_bucket_too(command, bucket, check_refused):
    storage.write_text(f"{bucket}/folder/thesis", "years of work")
    for name in ("folder", "") if command in FOLDERS else ("folder/thesis", "folder"):
        check_refused(command, f"{bucket}/{name}")
    assert storage.list_tree(bucket) == ["folder/thesis"]


def test_our_page_is_renewed_until_somebody_edits_it(model_dir, tmp_path, run):
    page = tmp_path / "deep/r.html"
    report = ("report", f"--model_dir={model_dir}", f"--output={page}")
    for _ in range(2):
        assert run(*report).status == 0
    page.write_text(page.read_text(encoding="utf-8") + "<!-- my note -->", encoding="utf-8")
    refused = run(*report)
    assert refused.status == 2 and "was changed since" in refused.stderr
    assert page.read_text(encoding="utf-8").endswith("<!-- my note -->")
