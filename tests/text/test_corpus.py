"""Sources: what is read, in which order, in which parts, and what is refused how."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
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
        monkeypatch.setattr(file_source, "_CHUNK", size)
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
    with pytest.raises(BadInput, match="no such file"):
        texts(f"{bucket}/x/d.txt")


def test_the_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    a = open_corpus([write(tmp_path / "a.jsonl", lines_of("一"))])
    b = open_corpus([write(tmp_path / "b.jsonl", lines_of("一"))])
    c = open_corpus([write(tmp_path / "c.jsonl", lines_of("二"))])
    assert a.fingerprint == b.fingerprint != c.fingerprint


def test_the_same_bytes_as_txt_and_as_jsonl_are_other_corpora(tmp_path: Path) -> None:
    content = lines_of("一", "二")
    names = ("a.jsonl", "a.txt", "b.txt")
    jsonl, txt, same = (open_corpus([write(tmp_path / name, content)]) for name in names)
    assert jsonl.fingerprint != txt.fingerprint == same.fingerprint
    packed = [
        open_corpus([write(tmp_path / name, gzip.compress(content, mtime=0))])
        for name in ("a.jsonl.gz", "a.txt.gz")
    ]
    assert packed[0].fingerprint != packed[1].fingerprint
    marked = open_corpus([write(tmp_path / "m.txt", b"\xef\xbb\xbf\n" + content)])
    unmarked = open_corpus([write(tmp_path / "m.jsonl", b"\xef\xbb\xbf\n" + content)])
    assert marked.fingerprint != unmarked.fingerprint


def test_fingerprints_of_earlier_versions_stay_valid(tmp_path: Path) -> None:
    """SHA-256 of the files' SHA-256: so the release before marked text that begins with "{"."""
    contents = {"a.jsonl": lines_of("一"), "b.txt": "二\n\n三".encode()}
    digests = [hashlib.sha256(content).digest() for content in contents.values()]
    paths = [write(tmp_path / name, content) for name, content in contents.items()]
    assert open_corpus(paths).fingerprint == hashlib.sha256(b"".join(digests)).hexdigest()


# --- one document per line in a .txt ---


def test_each_line_of_a_txt_is_a_document_where_that_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbf" + "一\r\n\r\n 二 \r三\n\n".encode())
    by_line = open_corpus([path], txt_documents="line")
    assert [d.text for d in by_line.documents()] == ["一", " 二 ", "三"]
    assert texts(path) == ["一", " 二 \n三"]
    assert by_line.fingerprint != open_corpus([path]).fingerprint
    packed = write(tmp_path / "a.txt.gz", gzip.compress("一\n二".encode()))
    assert [d.text for d in open_corpus([packed], txt_documents="line").documents()] == ["一", "二"]


def test_how_txt_is_cut_is_refused_where_there_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines_of("一"))
    with pytest.raises(BadInput, match=r"--txt_documents=line: no --input is a \.txt file"):
        open_corpus([path], txt_documents="line")


def test_a_txt_that_is_one_document_of_many_lines_is_said(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.txt", "\n".join(f"文書{i}" for i in range(50)).encode() + b"\n\n")
    more = write(tmp_path / "b.txt", b"\xef\xbb\xbf\r\na\r\nb")
    (warning,) = open_corpus([lines, more]).warnings()
    assert warning.startswith(f"{lines} (and 1 more like it) has no blank line in its first 50")
    assert warning.endswith("give --txt_documents=line")
    assert not open_corpus([lines, more], txt_documents="line").warnings()
    others = [
        write(tmp_path / "c.txt", "一\n二\n\u3000\n三".encode()),
        write(tmp_path / "d.txt", "\n\u3000\n一行\n \n".encode()),
        write(tmp_path / "e.jsonl", lines_of("一", "二")),
    ]
    assert not open_corpus(others).warnings()


# --- where a block of a file ends does not matter, nor how much white space there is ---

SCRAPS = st.lists(
    st.sampled_from(["\n", "\r\n", "\r", " ", "\t", "\u3000", "一", "a", "、", "\n\u3000\n"]),
    max_size=25,
).map("".join)


@given(SCRAPS, st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_blocks_do_not_matter_wherever_they_end(
    tmp_path_factory: pytest.TempPathFactory, content: str, size: int
) -> None:
    source = file_source.FileSource(
        write(tmp_path_factory.mktemp("blocks") / "a.txt", content.encode())
    )
    whole = list(source.texts())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_source, "_CHUNK", size)
        assert list(source.texts()) == whole


@pytest.mark.parametrize("before", range(1, 8))
def test_a_line_of_wide_spaces_at_the_edge_of_a_block(tmp_path: Path, before: int) -> None:
    """White space of three bytes, of which some are in the next megabyte."""
    text = b"a" * ((1 << 20) - before)
    path = write(tmp_path / "a.txt", text + "\n\u3000\n次の文書".encode())
    assert texts(path) == [text.decode(), "次の文書"]


def test_white_space_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes searched for blank lines, counted: twice as many for a file of twice the size."""

    class Counting:
        def __init__(self, pattern: re.Pattern[bytes]) -> None:
            self.pattern, self.searched = pattern, 0

        def finditer(self, text: bytes) -> Iterator[re.Match[bytes]]:
            self.searched += len(text)
            return self.pattern.finditer(text)

    monkeypatch.setattr(file_source, "_CHUNK", 1 << 10)
    for filling in (" ", "\n", "\u3000", " \n", "あ"):
        content = ("最初" + filling * (1 << 16) + "\n\n最後").encode()
        source = file_source.FileSource(write(tmp_path / "a.txt", content))
        counting = Counting(re.compile(file_source._BLANK_LINES.pattern))
        monkeypatch.setattr(file_source, "_BLANK_LINES", counting)
        assert [text[-2:] for text in source.texts()][-1] == "最後"
        assert counting.searched < 2 * len(content) + 4096


def test_white_space_without_end_is_refused_and_what_follows_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_source, "MAX_DOCUMENT_BYTES", 1 << 16)
    monkeypatch.setattr(file_source, "_CHUNK", 1 << 10)
    blank = b" " * (1 << 17)
    for name in ("a.txt", "a.jsonl"):
        path = write(tmp_path / name, lines_of("一") + b"\n" + blank + b"\n\n" + lines_of("二"))
        with pytest.raises(BadInput, match=r"line [23]: .*longer than"):
            texts(path)


def test_the_search_for_inputs_given_twice_is_linear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparisons of names, counted."""
    compared = 0

    class Label(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 300
    for i in range(count):
        write(tmp_path / f"{i:04d}.jsonl", lines_of("一"))
    glob = storage.glob
    monkeypatch.setattr(storage, "glob", lambda pattern: [Label(path) for path in glob(pattern)])
    assert len(open_corpus([f"{tmp_path}/*.jsonl"]).sources) == count
    assert compared <= 10 * count


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
    monkeypatch.setattr(file_source, "_CHUNK", 1 << 16)
    content = "短い\n\n".encode() + b"x\n" * (1 << 20)
    with pytest.raises(BadInput, match=r"a\.txt line 3: .*longer than 1 MB"):
        texts(write(tmp_path / "a.txt", content), write(tmp_path / "b.txt", b"x"))
    with pytest.raises(BadInput, match=r"a\.jsonl line 2: a line longer than 1 MB"):
        list(open_corpus([write(tmp_path / "a.jsonl", lines_of("a", "x" * (2 << 20)))]).documents())


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_corpus_is_not_hashed_beyond_a_line_that_is_too_long(tmp_path: Path, name: str) -> None:
    good = lines_of("一") if name == "a.jsonl" else "一\n\n二\n".encode()
    path = write(tmp_path / name, good)
    os.truncate(path, 64 << 30)  # a hole: as an unfinished copy leaves it
    with pytest.raises(BadInput, match=r"line [24]: .*longer than 64 MB"):
        _ = open_corpus([path]).fingerprint


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
        (
            "a.jsonl.gz",
            gzip.compress(lines_of("一" * 9000), mtime=0)[:-12],
            "a.jsonl.gz: .*truncated",
        ),
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
    with pytest.raises(BadInput, match="a folder without files of"):
        texts(str(tmp_path))
    with pytest.raises(BadInput, match="no --input"):
        texts()
    path = tmp_path / "a.txt"
    path.write_text("x")
    path.chmod(0)
    if not os.access(path, os.R_OK):  # root reads everything
        with pytest.raises(BadInput, match="permission denied"):
            texts(str(path))


def test_no_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    path = write(tmp_path / "a.txt", b"x")
    monkeypatch.setattr(storage, "open_read", refuse)
    with pytest.raises(BadInput, match=r"no permission to read .*a\.txt"):
        texts(path)


def test_surrogate_pairs_and_controls_go_through(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rb'{"text": "\ud83d\ude00 \u0000 \u0007 \u200f \ufeff"}')
    assert texts(path) == ["😀 \0 \x07 \u200f \ufeff"]


def test_a_folder_of_tfds_that_no_input_needs_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text\n", encoding="utf-8")
    with pytest.raises(BadInput, match="--tfds_data_dir"):
        open_corpus([str(path)], tfds_data_dir=str(tmp_path))
