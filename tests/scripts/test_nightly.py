"""The parts of the nightly tests: overdue ones are named, passes are recorded, all tests belong."""

import subprocess

import pytest
import yaml

from scripts import nightly
from testkit import ROOT


def git(root, *words):
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=root, check=True
    )
    return nightly.git(root, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository with one part, whose test passes where `passes` is there."""
    git(tmp_path, "init", "-q")
    (tmp_path / "tests").mkdir()
    (tmp_path / "passes").touch()
    part = {"run": "test -e passes", "subject": ["code"], "passed": None, "date": None}
    text = yaml.safe_dump({"kernels": {**part, "seconds": None, "since": "unknown"}})
    (tmp_path / "tests/nightly.yaml").write_text("# Kept.\n" + text)
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    monkeypatch.setattr(nightly, "RECORD", tmp_path / "tests/nightly.yaml")
    commit(tmp_path, "code")
    return tmp_path


def commit(root, name, times=1):
    for number in range(times):
        with (root / name).open("a") as file:
            file.write(f"{number}\n")
        git(root, "add", "--all")
        git(root, "commit", "-q", "-m", name)
    return nightly.git(root, "rev-parse", "--short=10", "HEAD")


def overdue(root, **changed):
    parts = nightly.read(root / "tests/nightly.yaml")
    parts["kernels"] |= changed
    return nightly.overdue(root, parts)


def test_a_part_is_overdue_after_sixty_commits_to_its_subject(repository):
    passed = commit(repository, "code")
    commit(repository, "code", 60)
    commit(repository, "elsewhere", 3)
    assert overdue(repository, passed=passed) == []
    commit(repository, "code")
    again = "61 commits to its subject ago: run `python -m scripts.nightly kernels`"
    assert overdue(repository, passed=passed) == [
        f"nightly part kernels: passed at {passed}, {again}"
    ]
    assert overdue(repository, since=passed) == [f"nightly part kernels: never ran, {again}"]


def test_an_unknown_commit_and_a_long_part_are_named(repository):
    assert overdue(repository) == ["nightly part kernels: git lacks commit unknown"]
    passed = nightly.git(repository, "rev-parse", "HEAD")
    (line,) = overdue(repository, passed=passed, seconds=2401)
    assert line == "nightly part kernels: took 2401 s: split it"


def test_a_pass_is_recorded_only_of_what_is_committed(repository):
    record = repository / "tests/nightly.yaml"
    before = record.read_text()
    (repository / "code").write_text("changed")
    assert nightly.run("kernels") and record.read_text() == before
    head = commit(repository, "code")
    (repository / "passes").rename(repository / "aside")
    assert not nightly.run("kernels") and record.read_text() == before
    (repository / "aside").rename(repository / "passes")
    assert nightly.run("kernels")
    part = nightly.read(record)["kernels"]
    assert part["passed"] == head and part["seconds"] == 0 and part["date"].startswith("20")
    assert record.read_text().startswith("# Kept.\n")
    assert nightly.run("kernels"), "its own record is no change of the tree"


def test_every_nightly_test_is_in_one_part_and_the_workflow_runs_all():
    parts, held = nightly.read(ROOT / "tests/nightly.yaml"), []
    for part in parts.values():
        taken, _, left = part.get("tests", "requirements").partition(" --ignore ")
        paths = taken.split() + [f":!{left}"] * bool(left)
        held += nightly.git(ROOT, "ls-files", "--", *paths).splitlines()
    for file in (ROOT / "tests").rglob("test_*.py"):
        if "pytest.mark" + ".nightly" in file.read_text("utf-8"):
            assert held.count(str(file.relative_to(ROOT))) == 1, file
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text("utf-8"))
    assert workflow["jobs"]["part"]["strategy"]["matrix"]["part"] == list(parts)
