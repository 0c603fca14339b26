"""Every flag that names an output: only what the command itself has made is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.cli import main
from bigbird_ja.settings.resolve import preset_path
from tests.report import fake_run
from tests.storage import odd_paths

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


def _refused(command: str, model_dir: Path, output: str, capsys: pytest.CaptureFixture) -> str:
    arguments = [word.format(m=model_dir, o=output) for word in command.split(" ")]
    assert main.run_command_line(arguments) == 2
    error = capsys.readouterr().err
    flag = next(word.split("=")[0] for word in command.split(" ") if word.endswith("{o}"))
    assert error.splitlines()[-1].startswith(f"bigbird-ja: {flag} "), error
    assert "Traceback" not in error
    return error


def _state(directory: Path) -> dict[str, object]:
    """What is in a folder; all of it but when it was read, which looking itself changes."""
    result: dict[str, object] = {}
    for path in directory.rglob("*"):
        about = os.lstat(path)
        owner = about.st_mode, about.st_ino, about.st_nlink, about.st_uid, about.st_gid
        content = path.read_bytes() if path.is_file() else None
        result[str(path)] = (*owner, about.st_size, about.st_mtime_ns, content)
    return result


@pytest.mark.parametrize("command", FILES + FOLDERS)
def test_what_others_made_is_left_alone(command, model_dir, tmp_path, capsys):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/thesis").write_text("years of work")
    (tmp_path / "link").symlink_to("thesis")
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "locked").touch()
    odd = [odd_paths.make(kind, _new(tmp_path / kind)) for kind in odd_paths.KINDS]
    before = _state(tmp_path)
    for name in ("thesis", "folder", "link", "nowhere", "locked/x"):
        _refused(command, model_dir, f"{tmp_path}/{name}", capsys)
    for path in odd:
        _refused(command, model_dir, path, capsys)
    assert _state(tmp_path) == before


def _new(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.parametrize("command", FILES + FOLDERS)
def test_on_a_bucket_too(command, model_dir, bucket, capsys):
    storage.write_text(f"{bucket}/folder/thesis", "years of work")
    for name in ("folder", "") if command in FOLDERS else ("folder/thesis", "folder"):
        _refused(command, model_dir, f"{bucket}/{name}", capsys)
    assert storage.list_tree(bucket) == ["folder/thesis"]


def test_our_page_is_renewed_until_somebody_edits_it(model_dir, tmp_path, capsys):
    page = tmp_path / "deep/r.html"
    report = ["report", f"--model_dir={model_dir}", f"--output={page}"]
    for _ in range(2):
        assert main.run_command_line(report) == 0
    page.write_text(page.read_text(encoding="utf-8") + "<!-- my note -->", encoding="utf-8")
    assert main.run_command_line(report) == 2
    assert "was changed since" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8").endswith("<!-- my note -->")


def test_pages_and_pictures_that_look_like_ours_are_left_alone(model_dir, tmp_path, capsys):
    """Once, a title or a word in the file's head was enough."""
    page = tmp_path / "r.html"
    page.write_text(
        '<meta name="generator" content="bigbird-ja report"><title>bigbird-ja: x</title>'
    )
    picture = tmp_path / "p.png"
    picture.write_bytes(b"\x89PNG Software\0bigbird-ja")
    before = _state(tmp_path)
    _refused(FILES[0], model_dir, str(page), capsys)
    _refused(FILES[1], model_dir, str(picture), capsys)
    assert _state(tmp_path) == before


def test_our_own_picture_is_renewed(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "deep/p.png"
    for _ in range(2):
        plan = ["plan", f"--config={preset_path('base-4096')}", f"--plot={picture}"]
        assert main.run_command_line(plan) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
