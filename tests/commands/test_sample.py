"""`bigbird-ja sample` as a user runs it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bigbird_ja import storage
from bigbird_ja.cli import main
from bigbird_ja.storage.ownership import MARK
from bigbird_ja.text import articles
from bigbird_ja.text.corpus import open_corpus
from testkit.command_line import Ended

MINE = b"my own text, years of work"


def run(*arguments: str) -> int:
    return main.run_command_line(["sample", *arguments])


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.txt"])
def test_every_form_reads_back_as_the_same_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / "new" / name
    arguments = [f"--output={path}", "--documents=12", "--seed=9"]
    assert run(*arguments) == 0
    content = path.read_bytes()
    read = [text.strip() for text in open_corpus([str(path)]).texts()]
    assert read == [text.strip() for text in articles.documents(12, 9)]
    assert run(*arguments) == 0 and "finished already" in capsys.readouterr().out
    for other in ("--documents=4", "--documents=16", "--seed=7"):
        assert run(*arguments, other) == 2
        assert "--overwrite" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert {p.name for p in path.parent.iterdir()} == {name, MARK}
    assert run(*arguments, "--documents=6", "--overwrite") == 0
    assert len(list(open_corpus([str(path)]).texts())) == 6
    with path.open("ab") as file:
        file.write(gzip.compress(MINE) if name.endswith("gz") else MINE)
    content = path.read_bytes()
    assert run(*arguments, "--overwrite") == 2
    assert "did not make" in capsys.readouterr().err and path.read_bytes() == content


def test_results(tmp_path: Path, run_cli: Callable[..., Ended]) -> None:
    path = tmp_path / "a.jsonl.gz"
    ended = run_cli("sample", f"--output={path}", "--documents=30", "--mean_length=800", "--json")
    assert ended.status == 0 and ended.json["documents"] == 30
    assert ended.json["bytes"] > 2 * ended.json["characters"] > 0
    assert ended.json["seconds"] > 0
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [line["id"] for line in lines] == [f"sample-{i:06d}" for i in range(30)]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_a_file_that_it_did_not_make_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(MINE)
    for flags, message in (([], "holds something else"), (["--overwrite"], "did not make")):
        assert run(f"--output={path}", "--documents=5", *flags) == 2
        assert message in capsys.readouterr().err
    assert path.read_bytes() == MINE and list(tmp_path.iterdir()) == [path]


def test_two_at_once_and_the_second_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = []
    documents = articles.documents

    def while_another_starts(*arguments: Any) -> Iterator[str]:
        if not statuses:
            statuses.append(run(f"--output={tmp_path}/a.txt", "--seed=2", "--overwrite"))
        yield from documents(*arguments)

    monkeypatch.setattr(articles, "documents", while_another_starts)
    assert run(f"--output={tmp_path}/a.txt", "--documents=30", "--mean_length=300") == 0
    assert statuses == [2] and "is writing there" in capsys.readouterr().err
    assert len(list(open_corpus([f"{tmp_path}/a.txt"]).texts())) == 30


def test_it_writes_to_a_bucket(bucket: str) -> None:
    assert run(f"--output={bucket}/a.jsonl.gz", "--documents=5") == 0
    assert run(f"--output={bucket}/a.jsonl.gz", "--documents=5") == 0
    assert run(f"--output={bucket}/a.jsonl.gz", "--documents=6") == 2
    assert set(storage.list_files(bucket)) == {"a.jsonl.gz", MARK}
    assert len(list(open_corpus([f"{bucket}/a.jsonl.gz"]).texts())) == 5
