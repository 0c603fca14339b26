"""Each flag that names an output: only outputs of the command itself are replaced."""

import os

import pytest

from tests.report import fake_run

# Command line, {o} the output; what is refused is refused before anything else is looked at.
FILES = ("report --model_dir={m} --output={o}", "preflight --output={o}")
FOLDERS = (
    "preflight --dump_hlo={o}",
    "export --model_dir={m} --output_dir={o} --overwrite",
    "demo --work_dir={o}",
    "pretrain --data_dir={m} --model_dir={o} --overwrite",
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return fake_run.write(tmp_path_factory.mktemp("run") / "a", steps=400)


@pytest.fixture
def check_refused(model_dir, run):
    """Return `check_refused(command, output)`, which expects one line about the output's flag."""

    def check(command, output):
        words = command.split(" ")
        ended = run(*(word.format(m=model_dir, o=output) for word in words))
        (flag,) = (word.split("=")[0] for word in words if word.endswith("{o}"))
        assert ended.status == 2 and "Traceback" not in ended.stderr
        assert ended.stderr.splitlines()[-1].startswith(f"bigbird-ja: {flag} "), ended.stderr

    return check


def state(directory):
    """Map every path below to its inode, mode and time of change."""
    stats = {str(path): os.lstat(path) for path in directory.rglob("*")}
    return {name: (about.st_ino, about.st_mode, about.st_ctime_ns) for name, about in stats.items()}


@pytest.mark.parametrize("command", FILES + FOLDERS)
def test_outputs_of_other_programs_are_refused_and_kept(command, tmp_path, check_refused):
    (tmp_path / "folder").mkdir()
    for thesis in ("thesis", "folder/thesis", "folder/model.ckpt-9.index"):
        (tmp_path / thesis).write_text("years of work")
    (tmp_path / "folder/export.json").write_text("{}")  # a record alone proves nothing
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
