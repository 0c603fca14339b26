"""Sources: what is read, in which order, in which parts, and what is refused how."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.text import file_source
from bigbird_ja.text.corpus import open_corpus


def lines_of(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": t}, ensure_ascii=False).encode() + b"\n" for t in texts)


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def texts(*sources: str) -> list[str]:
    return [document.text for document in open_corpus(sources).documents()]


def test_jsonl_plain_and_packed(tmp_path: Path) -> None:
    content = lines_of("一。\n二。", "", "三\u2028四\x85五")
    plain = write(tmp_path / "a.jsonl", content)
    packed = write(tmp_path / "b.jsonl.gz", gzip.compress(content))
    assert texts(plain) == texts(packed) == ["一。\n二。", "", "三\u2028四\x85五"]


def test_documents_know_their_source_and_index(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", lines_of("一", "二"))
    b = write(tmp_path / "b.txt", "三\n\n四".encode())
    found = list(open_corpus([a, b]).documents())
    assert [(d.text, d.source, d.index) for d in found] == [
        ("一", a, 0), ("二", a, 1), ("三", b, 2), ("四", b, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_txt_has_a_blank_line_between_documents(tmp_path: Path, newline: str) -> None:
    content = "\n\n一行目\n二行目\n \t\u3000\n\n三行目\n\n\n".replace("\n", newline)
    assert texts(write(tmp_path / "a.txt", content.encode())) == ["一行目\n二行目", "三行目"]


def test_mixed_newlines(tmp_path: Path) -> None:
    content = b"a\r\nb\rc\n\r\nd\n\re\r\rf\r\n\r\ng"
    assert texts(write(tmp_path / "a.txt", content)) == ["a\nb\nc", "d", "e", "f", "g"]
    content = b'{"text": "a"}\r\n\r{"text": "b"}\r{"text": "c"}\n\n'
    assert texts(write(tmp_path / "a.jsonl", content)) == ["a", "b", "c"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", b"\xef\xbb\xbfa")) == ["a"]
    assert texts(write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + lines_of("a"))) == ["a"]


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a\r\nb\n \r\n\rc\r\n\r\n\r\nd e\r\r\nf\n\n\n" * 3
    txt, jsonl = tmp_path / "a.txt", tmp_path / "a.jsonl"
    expected = texts(write(txt, content)), texts(write(jsonl, lines_of("ab", "c\n", "日本") * 3))
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(file_source, "_BLOCK", size)
        assert (texts(str(txt)), texts(str(jsonl))) == expected


def test_globs_are_sorted_and_a_file_counts_once(tmp_path: Path) -> None:
    for name in "cab":
        write(tmp_path / f"{name}.jsonl", lines_of(name))
    assert texts(f"{tmp_path}/*.jsonl") == ["a", "b", "c"]
    with pytest.raises(BadInput, match=r"a\.jsonl more than once"):
        texts(f"{tmp_path}/a.jsonl", f"{tmp_path}/*.jsonl")


def test_a_bucket_reads_like_a_disk(tmp_path: Path, bucket: str) -> None:
    storage.write_bytes(f"{bucket}/x/a.jsonl", lines_of("一", "二"))
    storage.write_bytes(f"{bucket}/x/b.jsonl.gz", gzip.compress(lines_of("三")))
    storage.write_bytes(f"{bucket}/x/c.txt", "四\n\n五".encode())
    corpus = open_corpus([f"{bucket}/x/*.jsonl", f"{bucket}/x/b.jsonl.gz", f"{bucket}/x/c.txt"])
    assert [d.text for d in corpus.documents()] == ["一", "二", "三", "四", "五"]
    assert [d.text for part in corpus.parts(3) for d in part.documents()][1:3] == ["二", "三"]
    with pytest.raises(BadInput, match="no such file"):
        texts(f"{bucket}/x/d.txt")


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_parts_joined_are_the_corpus(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str], num_parts: int
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    half = len(contents) // 2
    a = write(folder / "a.jsonl", lines_of("最初", *contents[:half]))
    b = write(folder / "b.jsonl.gz", gzip.compress(lines_of(*contents[half:])))
    corpus = open_corpus([a, b])
    parts = pickle.loads(pickle.dumps(corpus.parts(num_parts)))
    assert len(parts) <= num_parts
    assert [d for part in parts for d in part.documents()] == list(corpus.documents())
    for part in parts:
        assert [d.index for d in part.documents()] == list(
            range(part.first_index, part.first_index + part.num_documents)
        )


def test_parts_are_of_like_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_source, "_MAX_MARKS", 32)
    path = write(tmp_path / "a.jsonl", lines_of(*(f"{i:03d}" + "あ" * 5000 for i in range(300))))
    parts = open_corpus([path]).parts(4)
    assert sum(part.num_documents for part in parts) == 300
    assert all(50 < part.num_documents < 100 for part in parts)
    txt = write(tmp_path / "a.txt", "\r\n\r\n".join(f"文書{i}" * 2000 for i in range(50)).encode())
    corpus = open_corpus([txt])
    assert [d for p in corpus.parts(3) for d in p.documents()] == list(corpus.documents())


def test_the_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    a = open_corpus([write(tmp_path / "a.jsonl", lines_of("一"))])
    b = open_corpus([write(tmp_path / "b.jsonl", lines_of("一"))])
    c = open_corpus([write(tmp_path / "c.jsonl", lines_of("二"))])
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert a.size_bytes == os.path.getsize(tmp_path / "a.jsonl")


def test_ten_megabyte_lines(tmp_path: Path) -> None:
    long = "長い文。" * 900_000
    assert texts(write(tmp_path / "a.jsonl", lines_of("短い", long, "短い"))) == [
        "短い",
        long,
        "短い",
    ]
    assert texts(write(tmp_path / "a.txt", f"短い\n\n{long}\n\n短い".encode()))[1] == long


def test_what_is_longer_than_a_document_may_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "MAX_DOCUMENT_BYTES", 1 << 20)
    monkeypatch.setattr(file_source, "_BLOCK", 1 << 16)
    content = "短い\n\n".encode() + b"x\n" * (1 << 20)
    with pytest.raises(BadInput, match=r"a\.txt line 3: .*longer than 1 MB"):
        texts(write(tmp_path / "a.txt", content), write(tmp_path / "b.txt", b"x"))
    with pytest.raises(BadInput, match=r"a\.jsonl line 2: a line longer than 1 MB"):
        list(open_corpus([write(tmp_path / "a.jsonl", lines_of("a", "x" * (2 << 20)))]).documents())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", lines_of("一") + b'{"title": "x"}\n', "a.jsonl line 2: no string `text`"),
        ("a.jsonl", lines_of("一") + b'{"text": null}\n', "a.jsonl line 2: no string `text`"),
        ("a.jsonl", lines_of("一") + b'["text"]\n', "a.jsonl line 2: no string `text`"),
        ("a.jsonl", lines_of("一") + b'\n\n{"text": "x"\n', "a.jsonl line 4: not JSON"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl line 1: not JSON"),
        ("a.jsonl", lines_of("一", "二") + b'{"text": "\xe3\x81"}\n', "a.jsonl line 3: not UTF-8"),
        (
            "a.jsonl",
            lines_of("一") + b'{"text": "a\\ud800b"}\n',
            "a.jsonl line 2: a lone surrogate",
        ),
        ("a.jsonl", "日本".encode("utf-16"), "a.jsonl line 1: not UTF-8"),
        ("a.txt", "一\r\n\r\n二\r三\n".encode() + b"\xff", "a.txt line 5: not UTF-8 .byte 0xff"),
        ("a.txt", "日本語".encode("euc-jp"), "a.txt line 1: not UTF-8"),
        ("a.jsonl.gz", gzip.compress(lines_of("一" * 9000))[:-12], "a.jsonl.gz: .*truncated"),
        ("a.jsonl.gz", b"plain", "a.jsonl.gz: damaged or truncated gzip"),
        ("a.txt", b"", "the corpus is empty"),
        ("a.txt", b" \n\n\n \n", "the corpus is empty"),
        ("a.jsonl", lines_of("", " "), "the corpus is empty"),
        ("a.csv", b"x", r"a.csv: the name must end in .jsonl"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        texts(write(tmp_path / name, content))


def test_missing_files_directories_and_permissions(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        texts(f"{tmp_path}/none.jsonl")
    with pytest.raises(BadInput, match="no file matches"):
        texts(f"{tmp_path}/*.jsonl")
    with pytest.raises(BadInput, match="is a directory"):
        texts(str(tmp_path))
    with pytest.raises(BadInput, match="no --input"):
        texts()
    path = tmp_path / "a.txt"
    path.write_text("x")
    path.chmod(0)
    if not os.access(path, os.R_OK):  # root reads everything
        with pytest.raises(BadInput, match="no permission"):
            texts(str(path))


def test_no_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(storage, "open_read", refuse)
    with pytest.raises(BadInput, match=r"no permission to read .*a\.txt"):
        texts(f"{tmp_path}/a.txt")


def test_surrogate_pairs_and_controls_go_through(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rb'{"text": "\ud83d\ude00 \u0000 \u0007 \u200f \ufeff"}')
    assert texts(path) == ["😀 \0 \x07 \u200f \ufeff"]
