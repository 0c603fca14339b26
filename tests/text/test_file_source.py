"""Files of text are divided into documents, and invalid files are refused."""

import gzip
import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.errors import BadInput
from bigbird_ja.text import file_source
from bigbird_ja.text.corpus import open_corpus
from tests.text import lines_of, texts, write

with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
    archive.writestr("a.txt", "one")
LOCKED_ZIP = bytearray(packed.getvalue())
# Set the bits that mark the file in the archive as encrypted.
LOCKED_ZIP[6] |= 1
LOCKED_ZIP[LOCKED_ZIP.index(b"PK\x01\x02") + 8] |= 1
CUT_GZIP = gzip.compress(b'{"text": "one"}\n' * 900, mtime=0)[:-12]


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", lines_of("一\n二", "", "三\u2028四\x85"), ["一\n二", "", "三\u2028四\x85"]),
        ("a.jsonl", b'{"text": "a"}\r\n\r{"text": "b"}\r{"text": "c"}\n\n', ["a", "b", "c"]),
        ("a.jsonl", BOM + lines_of("a") + b'{"text": null}\n', ["a", ""]),
        ("a.jsonl", rb'{"text": "\ud83d\ude00 \u0000 \u0007 \u200f"}', ["😀 \0 \x07 \u200f"]),
        ("a.txt", "\n\n一\n二\n \t\u3000\n\n三\n\n\n".encode(), ["一\n二", "三"]),
        ("a.txt", "\r\r一\r二\r \t\u3000\r\r三\r".encode(), ["一\n二", "三"]),
        ("a.txt", b"a\r\nb\rc\n\r\nd\n\re\r\rf\r\n\r\ng", ["a\nb\nc", "d", "e", "f", "g"]),
        ("a.txt", b"a" * ((1 << 20) - 2) + "\n\u3000\n次".encode(), ["a" * ((1 << 20) - 2), "次"]),
    ],
)
def test_files_are_cut_into_documents(tmp_path, name, content, expected):
    assert texts(write(tmp_path / name, content)) == expected
    assert texts(write(tmp_path / f"{name}.gz", gzip.compress(content, mtime=0))) == expected


SCRAPS = st.lists(
    st.sampled_from(["\n", "\r\n", "\r", " ", "\t", "\u3000", "一", "a", "、", "\n\u3000\n"]),
    max_size=25,
).map("".join)


@given(SCRAPS)
@settings(max_examples=200, deadline=None)
def test_no_character_of_a_text_is_lost(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("scraps") / "a.txt"
    result = list(file_source.FileSource(write(path, content.encode())).texts())
    assert "".join("".join(result).split()) == "".join(content.split())
    for text in result:
        assert text.strip() and all(line.strip(" \t\u3000") for line in text.split("\n"))


@pytest.mark.parametrize(("name", "comma"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv.gz", ",")])
def test_a_column_of_a_quoted_table_is_read(tmp_path, name, comma):
    rows = [f"id{comma}本文", f'1{comma}"一{comma}""二""\r\n三"', "", f"2{comma}", f"3{comma}四"]
    content = ("\ufeff" + "\r\n".join(rows)).encode()
    packed = gzip.compress(content, mtime=0) if name.endswith(".gz") else content
    read = open_corpus([write(tmp_path / name, packed)], text_fields=["text", "本文"]).texts()
    assert [text for text in read if text] == [f'一{comma}"二"\n三', "四"]


def test_an_archive_is_read_by_file_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/b.jsonl", lines_of("二"))
        archive.writestr("x/a.txt", "一")
        archive.writestr("x/c.csv.gz", gzip.compress("text\n三\n".encode(), mtime=0))
        archive.writestr("x/README.md", "no text of the corpus")
        archive.writestr("__MACOSX/x/._a.txt", "none either")
    assert texts(str(tmp_path / "a.zip")) == ["一", "二", "三"]
    digest = open_corpus([str(tmp_path / "a.zip")]).fingerprint
    for name in ("x/b.jsonl", "x/a.txt", "x/c.csv.gz"):
        zipfile.ZipFile(tmp_path / "a.zip").extract(name, tmp_path)
    assert open_corpus([str(tmp_path / "x")]).fingerprint == digest
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as archive:
        archive.writestr("a.md", "x")
    with pytest.raises(BadInput, match="the archive contains no file"):
        texts(str(tmp_path / "none.zip"))


def test_suffixes_may_be_in_capitals_and_skipped_files_of_a_folder_are_logged(tmp_path, caplog):
    for name, content in (
        ("BIG.TXT", b"a"),
        ("B.JSONL.GZ", gzip.compress(lines_of("b"))),
        ("C.Csv", b"text\nc\n"),
        ("README.md", b"none"),
        ("sub.PDF", b"none"),
    ):
        write(tmp_path / name, content)
    with zipfile.ZipFile(tmp_path / "D.ZIP", "w") as archive:
        archive.writestr("X.TXT", "d")
    assert sorted(texts(tmp_path)) == ["a", "b", "c", "d"]
    assert "2 of 6 files are ignored, such as README.md" in caplog.text
    caplog.clear()
    assert texts(tmp_path / "BIG.TXT") == ["a"]
    assert "left out" not in caplog.text


@pytest.mark.parametrize("encoding", ["cp932", "euc_jp", "utf-16", "Shift-JIS"])
def test_files_of_another_encoding_are_read(tmp_path, encoding):
    lines = '{"text": "日本語\\n表示"}\r\n{"text": "二"}\r\n'.encode(encoding)
    path = write(tmp_path / "a.jsonl", lines)
    assert texts(path, encoding=encoding) == ["日本語\n表示", "二"]
    assert open_corpus([path], encoding=encoding).fingerprint
    write(tmp_path / "b.txt", b"a\x81\x20")
    with pytest.raises(BadInput, match=r"b\.txt line 1: not "):
        texts(tmp_path / "b.txt", encoding="cp932")
    for other in ("cp9999", "base64"):
        with pytest.raises(BadInput, match="Python has no such encoding"):
            texts(path, encoding=other)


def test_each_file_is_read_by_the_first_field_that_it_has(tmp_path):
    paths = [
        write(tmp_path / "a.jsonl", lines_of("一") + '{"本文": "二"}\n'.encode()),
        write(tmp_path / "b.csv", "id,本文\n1,三\n".encode()),
        write(tmp_path / "c.tsv", "text\t本文\n四\t五\n".encode()),
    ]
    assert texts(*paths, text_fields=["text", "本文"]) == ["一", "二", "三", "四"]
    with pytest.raises(
        BadInput, match=r"a\.jsonl line 1: no field 本文. Its fields are text. Add one"
    ):
        texts(*paths, text_fields=["本文"])


def test_txt_documents_is_the_unit_of_a_document(tmp_path):
    path = write(tmp_path / "a.txt", BOM + "\n一\r\n\r\n 二 \r三\n\n".encode())
    expected = {
        "line": ["一", " 二 ", "三"],
        "blank_line": ["一", " 二 \n三"],
        "file": ["一\n\n 二 \n三"],
    }
    for choice, documents in expected.items():
        assert texts(path, txt_documents=choice) == documents
    assert texts(path) == expected["blank_line"]


BOOK = "第一章\n\n吾輩は猫である。\n\n名前はまだ無い。\n"


@pytest.mark.parametrize(
    ("contents", "number", "said"),
    [
        ([BOOK] * 4, 4, "each of 4 .txt files is a document (`txt_documents` file)"),
        ([BOOK], 3, "a blank line ends a document (`txt_documents` blank_line)"),
        ([BOOK, "長い。" * (1 << 20)], 4, "a blank line ends a document"),
    ],
)
def test_auto_chooses_by_the_files_and_logs_its_choice(tmp_path, caplog, contents, number, said):
    for name, content in enumerate(contents):
        write(tmp_path / f"{name}.txt", content.encode())
    for source in (tmp_path, f"{tmp_path}/*.txt"):
        assert len(texts(str(source))) == number
        assert said in caplog.text and str(source) in caplog.text
        caplog.clear()


def test_documents_of_ten_megabytes_are_read_and_longer_ones_refused(tmp_path, monkeypatch):
    long = "長い文。" * 900_000
    assert texts(write(tmp_path / "a.jsonl", lines_of("短い", long)))[1] == long
    assert texts(write(tmp_path / "a.txt", f"短い\n\n{long}\n\n短い".encode()))[1] == long
    monkeypatch.setattr(file_source, "MAX_DOCUMENT_BYTES", 1 << 20)
    first = "短い\n\n".encode()
    for name, content, message in (
        ("a.txt", first + b"x\n" * (1 << 20), "line 3: this document .*longer than 1 MB"),
        ("a.txt", first + b" " * (1 << 21), "line 3: this line is longer than 1 MB"),
        ("a.jsonl", lines_of("a", "長" * (1 << 19)), "line 2: this line is longer than 1 MB"),
    ):
        with pytest.raises(BadInput, match=message):
            texts(write(tmp_path / name, content))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            lines_of("一") + b'{"a": "x", "b": 1}\n',
            "no field text. Its fields are a, b. Add one to `text_fields`",
        ),
        ("a.jsonl", lines_of("一") + b'{"text": [1]}\n', "line 2: field text contains a list, no"),
        ("a.jsonl", b'{"text": 7}\n', "line 1: field text contains a number, not a string"),
        ("a.jsonl", lines_of("一") + b'\n\n{"text": "x"\n', "a.jsonl line 4: not JSON"),
        ("a.jsonl", lines_of("一", "二") + b'{"text": "\xe3\x81"}\n', "a.jsonl line 3: not UTF-8"),
        (
            "a.jsonl",
            lines_of("一") + b'{"text": "a\\ud800b"}',
            "a.jsonl line 2: the text contains a lone surrogate",
        ),
        ("a.txt", "一\r\n\r\n二\r三\n".encode() + b"\xff", "a.txt line 5: not UTF-8 .byte 0xff"),
        (
            "a.jsonl.gz",
            CUT_GZIP,
            "a.jsonl.gz is not a whole file of its kind .Compressed file ended",
        ),
        ("a.jsonl", b"text", r'not JSON .*: each line must be an object such as {"text"'),
        ("a.txt", "日本語の文章です。\n".encode("cp932"), "like cp932: give that as `encoding`"),
        ("a.jsonl", "日本語の文章です。\n".encode("euc_jp"), "It looks like euc_jp"),
        ("a.txt", "日本語".encode("utf-16"), "It looks like utf-16"),
        ("a.json", b"[]", r"must end in .*jq -c '\.\[\]'"),
        ("a.csv", b"id,text\n1,a\n2\n", "a.csv line 3: 1 columns, but the header has 2"),
        ("a.csv", b'text\n"a\nb\n', "a.csv line 3: unexpected end of data"),
        ("a.csv", b"id,body\n1,a\n", "no column text. Its fields are id, body. .* a header line"),
        ("a.csv", b"0,%b\n" % (b"x" * 999), r"no column text. Its fields are 0, x+ \.\.\.. Add"),
        ("a.csv", b"text,b\n1,x\n\n2,y\n", "column text contains numbers, not text. Name another"),
        ("a.zip", b"PK", "a.zip is not an archive"),
        (
            "a.zip",
            LOCKED_ZIP,
            r"a.zip::a.txt is not a whole file .*password.*: unpack it, and give",
        ),
        ("a.txt", b" \n\n\n \n", "the corpus contains no text"),
    ],
)
def test_invalid_files_are_refused_with_file_and_line(tmp_path, name, content, message):
    with pytest.raises(BadInput, match=message):
        texts(write(tmp_path / name, content))
