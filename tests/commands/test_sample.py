"""`bigbird-ja sample` as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja import storage
from bigbird_ja.cli import main
from bigbird_ja.text import sample
from bigbird_ja.text.corpus import open_corpus
from testkit.command_line import Ended


def run(*arguments: str) -> int:
    return main.run_command_line(["sample", *arguments])


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.txt"])
def test_every_form_reads_back_as_the_same_corpus(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / name
    assert run(f"--output={path}", "--documents=12", "--seed=9") == 0
    read = [d.text.strip() for d in open_corpus([str(path)]).documents()]
    assert read == [text.strip() for text in sample.documents(12, 9)]
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_results_and_repetition(tmp_path: Path, run_cli: Callable[..., Ended]) -> None:
    path = tmp_path / "a.jsonl.gz"
    arguments = ("sample", f"--output={path}", "--documents=30", "--mean_length=800", "--json")
    first = run_cli(*arguments)
    content = path.read_bytes()
    assert first.status == 0
    assert first.json["documents"] == 30
    assert first.json["bytes"] > 2 * first.json["characters"] > 0
    assert first.json["seconds"] > 0
    again = run_cli(*arguments)
    assert again.status == 0 and "finished already" in again.stderr
    assert path.read_bytes() == content
    lines = [json.loads(line) for line in gzip.decompress(content).splitlines()]
    assert {len(line["id"]) for line in lines} == {len("sample-000000")}


def test_other_settings_are_refused_without_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/a.txt"
    assert run(f"--output={path}", "--documents=5") == 0
    content = Path(path).read_bytes()
    for other in ("--documents=4", "--documents=6", "--seed=7"):
        assert run(f"--output={path}", "--documents=5", other) == 2
        assert "--overwrite" in capsys.readouterr().err
    assert Path(path).read_bytes() == content
    assert run(f"--output={path}", "--documents=6", "--overwrite") == 0
    assert len(list(open_corpus([path]).documents())) == 6


MINE = b"my own text, years of work"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_file_that_it_did_not_make_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flags: list[str]
) -> None:
    path = tmp_path / name
    for content in (MINE, b"", b"_START_ARTICLE_\n" + MINE, b'{"text": "\xe4\xb8\x80"}\n'):
        path.write_bytes(content)
        assert run(f"--output={path}", "--documents=5", *flags) == 2
        assert "did not make" in capsys.readouterr().err
        assert path.read_bytes() == content


def test_links_devices_and_folders_are_not_written_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    target.write_bytes(MINE)
    (tmp_path / "link.txt").symlink_to(target)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "fifo.txt")
    (tmp_path / "null.txt").symlink_to("/dev/null")
    for name in ("link", "gone", "folder", "fifo", "null"):
        assert run(f"--output={tmp_path}/{name}.txt", "--documents=5", "--overwrite") == 2, name
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert target.read_bytes() == MINE and not (tmp_path / "nowhere").exists()
    assert (tmp_path / "link.txt").is_symlink() and list(tmp_path.glob(".*")) == []


def test_tfds_data_that_it_did_not_make_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = tmp_path / "wiki40b" / "ja" / "1.3.0"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text('{"description": "the real Wiki40b"}')
    assert run(f"--output=tfds:{tmp_path}", "--documents=20", "--overwrite") == 2
    assert "did not make" in capsys.readouterr().err
    assert [path.name for path in prepared.iterdir()] == ["dataset_info.json"]


@pytest.mark.parametrize("output", ["a.txt", "tfds"])
def test_two_at_once_and_the_second_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    path = f"tfds:{tmp_path}" if output == "tfds" else f"{tmp_path}/{output}"
    seen = []
    documents = sample.documents

    def while_another_starts(*arguments: Any) -> Iterator[str]:
        if not seen:
            seen.append(run(f"--output={path}", "--documents=30", "--seed=2", "--overwrite"))
        yield from documents(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "documents", while_another_starts)
        assert run(f"--output={path}", "--documents=30", "--mean_length=300") == 0
    assert seen == [2] and "is writing there" in capsys.readouterr().err
    assert run(f"--output={path}", "--documents=30", "--mean_length=300") == 0
    assert "finished already" in capsys.readouterr().out


def test_a_tfds_directory_is_read_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = f"--output=tfds:{tmp_path}"
    assert run(output, "--documents=20", "--mean_length=300") == 0
    assert run(output, "--documents=20", "--mean_length=300") == 0
    assert "finished already" in capsys.readouterr().out
    assert run(output, "--documents=21", "--mean_length=300") == 2
    assert "documents=20" in capsys.readouterr().err
    assert run(output, "--documents=21", "--mean_length=300", "--overwrite") == 0
    corpus = open_corpus(["tfds:wiki40b/ja:train+validation+test"], str(tmp_path))
    assert [d.text for d in corpus.documents()] == list(sample.documents(21, 1, 300))


def test_it_writes_to_a_bucket(bucket: str) -> None:
    assert run(f"--output={bucket}/a.jsonl.gz", "--documents=5") == 0
    assert run(f"--output={bucket}/a.jsonl.gz", "--documents=5") == 0
    assert run(f"--output={bucket}/a.jsonl.gz", "--documents=6") == 2
    assert storage.list_files(bucket) == ["a.jsonl.gz"]
    assert len(list(open_corpus([f"{bucket}/a.jsonl.gz"]).documents())) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--output is needed"),
        (["--output=DIR/a.csv"], "must end in .jsonl"),
        (["--output=DIR/a.txt", "--documents=0"], "between 1 and"),
        (["--output=DIR/a.txt", "--mean_length=3"], "between 250 and 40000"),
        (["--output=DIR/a.txt", "--facts_per_1000_characters=-1"], "facts_per_1000_characters"),
        (["--output=tfds:DIR", "--documents=2"], "at least 3"),
        (["--output=tfds:gs://bucket/x"], "then copy it to the bucket"),
        (["--output=/proc/none/a.txt", "--documents=1"], "/proc/none"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(*(a.replace("DIR", str(tmp_path)) for a in arguments)) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.strip().splitlines()) == 1
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
