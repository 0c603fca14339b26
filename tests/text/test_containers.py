"""Text in formats of other tools: Parquet, Arrow, `datasets` on disk, Zstandard, folders."""

import functools
import json
from array import array

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.text import containers, file_source
from bigbird_ja.text.corpus import open_corpus
from tests.text import texts

pyarrow = pytest.importorskip("pyarrow", reason="needs the arrow extra")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the arrow extra")
TEXTS = ["一つ目。", "二つ目。\n改行も。", *(f"文書{i}。" for i in range(600))]


def table(texts=TEXTS, field="text"):
    return pyarrow.table({"id": list(range(len(texts))), field: texts})


def write_parquet(path, content):
    parquet.write_table(content, path, row_group_size=100)


def write_arrow(path, content, kind=pyarrow.ipc.new_stream):
    with pyarrow.OSFile(str(path), "wb") as sink, kind(sink, content.schema) as out:
        out.write_table(content, 250)


WRITERS = {
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "b.arrow": functools.partial(write_arrow, kind=pyarrow.ipc.new_file),
}


def save_data_set(folder, parts):
    """Write a folder as `datasets.Dataset.save_to_disk` does."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(parts):05}.arrow" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        write_arrow(folder / name, table(part))
    write_arrow(folder / "cache-0123456789abcdef.arrow", table(["what `map` has kept"]))
    for name in ("state.json", "dataset_info.json"):
        (folder / name).write_text("{}")


@pytest.mark.parametrize("name", WRITERS)
def test_each_row_is_a_document_and_damage_is_one_line(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, table())
    assert texts(path) == TEXTS
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"not such a file at all"):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match=r"not a whole file|contains no text"):
            texts(path)
    WRITERS[name](path, table(["", None, "x"], "body"))
    assert texts(path, text_fields=["body"]) == ["", "", "x"]
    with pytest.raises(BadInput, match=r"no column text\. Its fields are id, body\. Add"):
        texts(path)


def test_damaged_text_is_refused_before_it_is_read(tmp_path):
    """Refuse invalid strings, which Arrow reads without a check."""
    for offsets, data in (([0, 2], b"\xff\xfe"), ([0, 1 << 30, 2], b"ab")):
        buffers = [None, *(pyarrow.py_buffer(b) for b in (array("i", offsets).tobytes(), data))]
        column = pyarrow.Array.from_buffers(pyarrow.string(), len(offsets) - 1, buffers)
        for name in ("a.arrow", "b.arrow"):
            WRITERS[name](tmp_path / name, pyarrow.table({"text": column}))
            with pytest.raises(BadInput, match="not a whole file"):
                texts(tmp_path / name)


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_other_types_are_refused_unread(tmp_path, name):
    number = pyarrow.array([2**62])
    times = {"time": number.view(pyarrow.timestamp("us")), "date": number.view(pyarrow.date64())}
    columns = {"number": number, **times, "list": pyarrow.array([["x"]])}
    WRITERS[name](tmp_path / name, pyarrow.table(columns))
    for column in columns:
        with pytest.raises(BadInput, match=f"{column} contains .*, not text. Name another column"):
            texts(tmp_path / name, text_fields=[column])


def test_large_and_repeated_strings_are_text(tmp_path):
    for kind in (pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        content = pyarrow.table({"text": pyarrow.array(TEXTS).cast(kind)})
        write_arrow(tmp_path / "a.arrow", content)
        assert texts(tmp_path / "a.arrow") == TEXTS


def test_a_text_that_is_stored_once_for_all_rows_is_in_memory_once(tmp_path, monkeypatch):
    # The text has 3 MB in UTF-8, and is stored once for 100 rows.
    path, text = tmp_path / "a.parquet", "長" * 1_000_000
    kept = pyarrow.DictionaryArray.from_arrays([0] * 100, [text])
    table = pyarrow.table({"text": pyarrow.chunked_array([kept])})
    parquet.write_table(table, path, dictionary_pagesize_limit=1 << 30)
    monkeypatch.setattr(containers, "_BATCH_BYTES", 10 << 20)
    before = pyarrow.default_memory_pool().max_memory()
    assert path.stat().st_size < 1 << 20
    assert sum(len(read) for read in open_corpus([str(path)]).texts()) == 100_000_000
    assert pyarrow.default_memory_pool().max_memory() - before < 100 << 20, "300 MB at once"
    monkeypatch.setattr(file_source, "MAX_DOCUMENT_BYTES", (3 << 20) - (1 << 18))
    with pytest.raises(BadInput, match="line 1: this row is longer than 2 MB"):
        texts(path)


def test_a_data_set_on_disk(tmp_path):
    save_data_set(tmp_path / "plain", [TEXTS[:2], TEXTS[2:]])
    assert texts(tmp_path / "plain") == TEXTS
    save_data_set(tmp_path / "splits/train", [TEXTS[:1]])
    save_data_set(tmp_path / "splits/test", [TEXTS[1:2]])
    (tmp_path / "splits/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert texts(tmp_path / "splits") == TEXTS[:1]
    assert texts(tmp_path / "splits/test") == TEXTS[1:2]
    (tmp_path / "splits/train").rename(tmp_path / "dev")
    with pytest.raises(BadInput, match=r"splits/train: the folder contains no file"):
        texts(tmp_path / "splits")


def test_zstd_lines_and_a_folder_of_everything(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "more").mkdir(parents=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    packed = pyarrow.compress(lines, codec="zstd", asbytes=True)
    (folder / "a.jsonl.zst").write_bytes(packed)
    write_parquet(folder / "more/b.parquet", table(["p"]))
    (folder / "c.txt").write_text("q\n\nr")
    (folder / "README.md").write_text("left out")
    assert texts(folder / "a.jsonl.zst") == TEXTS
    assert texts(folder) == [*TEXTS, "q", "r", "p"]
    (folder / "a.jsonl.zst").write_bytes(packed[:-20])
    with pytest.raises(BadInput, match="not a whole file"):
        texts(folder / "a.jsonl.zst")


def test_another_field_is_another_corpus(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "body": "y"}\n')
    assert texts(path, text_fields=["body"]) == ["y"]
    fields = ("text", "body")
    assert len({open_corpus([str(path)], text_fields=[f]).fingerprint for f in fields}) == 2
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(
        BadInput, match=r"`text_fields`: none of `inputs` has fields\. Leave it out"
    ):
        texts(tmp_path / "a.txt", text_fields=["body"])
