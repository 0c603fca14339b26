"""Corpora: order, fingerprint, weights, and data sets of TFDS that were prepared offline."""

import http.server
import os
import threading

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.text import articles
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text.corpus import open_corpus, split_weight
from testkit import tfds_stand_in
from tests.text import lines_of, texts, write


def test_a_bucket_reads_like_a_disk_and_a_file_counts_once(bucket):
    storage.write_bytes(f"{bucket}/x/b.jsonl", lines_of("三"))
    storage.write_bytes(f"{bucket}/x/a.jsonl", lines_of("一", "二"))
    storage.write_bytes(f"{bucket}/x/c.txt", "四\n\n五".encode())
    assert texts(f"{bucket}/x/*.jsonl", f"{bucket}/x/c.txt") == ["一", "二", "三", "四", "五"]
    with pytest.raises(BadInput, match=r"a\.jsonl more than once"):
        texts(f"{bucket}/x/a.jsonl", f"{bucket}/x/*.jsonl")
    with pytest.raises(FileNotFoundError):
        texts(f"{bucket}/x/d.txt")


def test_the_fingerprint_follows_the_content_and_how_it_is_cut(tmp_path):
    content = lines_of("一", "二")
    names = ("a.jsonl", "b.jsonl", "a.txt", "b.txt")
    result = [open_corpus([write(tmp_path / name, content)]).fingerprint for name in names]
    assert result[0] == result[1] != result[2] == result[3]
    other = open_corpus([write(tmp_path / "c.jsonl", lines_of("一"))])
    by_line = open_corpus([f"{tmp_path}/a.txt"], txt_documents="line")
    assert len({*result, other.fingerprint, by_line.fingerprint}) == 4


def test_inputs_without_files_are_refused(tmp_path):
    for sources, message in (
        ([str(tmp_path)], "the folder contains no file"),
        ([], "`inputs` is empty"),
    ):
        with pytest.raises(BadInput, match=message):
            texts(*sources)


# --- corpora with weights (SRC=WEIGHT) ---


@pytest.mark.parametrize(
    ("source", "place", "weight"),
    [
        ("a.jsonl=2", "a.jsonl", 2),
        ("a.jsonl=1e-3", "a.jsonl", 0.001),
        ("news/*.txt.gz=3", "news/*.txt.gz", 3),
        ("gs://b/day=1/=2", "gs://b/day=1/", 2),
        ("gs://b/day=1/x.parquet=2", "gs://b/day=1/x.parquet", 2),
        ("tfds:wiki40b/ja:train[:10%]=2", "tfds:wiki40b/ja:train[:10%]", 2),
        # A path may contain an equals sign.
        *((path, path, None) for path in ("a.jsonl", "lang=ja/a.jsonl", "gs://b/day=1/")),
        *((path, path, None) for path in ("somewhere/lang=ja", "=2", "")),
    ],
)
def test_a_number_after_the_last_equals_sign_is_a_weight(source, place, weight):
    assert split_weight(source) == (place, weight)


@pytest.mark.parametrize("weight", ["0", "0.00001", "1001", "1-2"])
def test_a_bad_weight_is_refused_in_one_line(weight):
    with pytest.raises(BadInput, match=r"the weight (?!.*\n).*SRC=WEIGHT"):
        split_weight(f"a.jsonl={weight}")


def test_a_path_that_ends_like_a_weight_is_usable(tmp_path):
    folder = tmp_path / "day=2"
    folder.mkdir()
    write(folder / "x.txt", "一\n\n二".encode())
    assert split_weight(f"{folder}/") == (f"{folder}/", None)
    plain, weighted = (open_corpus([str(folder) + end], takes_weights=True) for end in ("", "=0.5"))
    assert plain.sources == weighted.sources == [os.path.join(folder, "x.txt")]
    assert plain.weights == [] and weighted.weights == [(plain.fingerprint, 0.5)]


# --- corpora of TFDS (tfds:NAME) ---

DOCUMENTS = list(articles.generate(40, 1, 500))
SIZES = {"train": 36, "validation": 2, "test": 2}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("tfds"))
    tfds_stand_in.write(directory, DOCUMENTS, SIZES)
    return directory


def test_tfds_splits_have_their_order_and_fingerprint(prepared):
    splits = {
        "tfds:wiki40b/ja": DOCUMENTS[:36],
        "tfds:wiki40b/ja:train": DOCUMENTS[:36],
        "tfds:wiki40b/ja:validation": DOCUMENTS[36:38],
        "tfds:wiki40b/ja:train[10:13]+test": DOCUMENTS[10:13] + DOCUMENTS[38:],
        "tfds:wiki40b/ja:1.3.0:test": DOCUMENTS[38:],
    }
    fingerprints = set()
    for source, expected in splits.items():
        corpus = open_corpus([source], prepared)
        assert list(corpus.texts()) == expected, source
        fingerprints.add(corpus.fingerprint)
    assert len(fingerprints) == len(splits) - 1
    assert open_corpus(["tfds:wiki40b/ja"], prepared).sources == ["tfds:wiki40b/ja:1.3.0:train"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tfds:wiki40b/ja:dev", "no split 'dev'. Its splits are .*train"),
        ("tfds:wiki40b/ja:train[", "no split"),
        ("tfds:wiki40b/xx", "not prepared in .*gsutil -m cp -r"),
        ("tfds:wiki40b/ja:2.0.0", "not prepared in"),
        ("tfds:", "write it as tfds:wiki40b/ja"),
    ],
)
def test_unknown_tfds_data_sets_and_splits_are_refused(prepared, source, message):
    with pytest.raises(BadInput, match=message):
        open_corpus([source], prepared)


def test_the_public_copy_of_tfds_is_read_if_it_answers(prepared, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    monkeypatch.setattr(corpus_lib, "_PUBLIC_URL", "http://127.0.0.1:1/datasets")
    with pytest.raises(BadInput, match=r"if that can be reached: .*DIR as `tfds_data_dir`"):
        open_corpus(["tfds:wiki40b/ja"])
    monkeypatch.setattr(corpus_lib, "PUBLIC_COPY", prepared)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request).start()  # The server answers with 501.
        monkeypatch.setattr(corpus_lib, "_PUBLIC_URL", f"http://127.0.0.1:{server.server_port}")
        assert list(open_corpus(["tfds:wiki40b/ja"]).texts()) == DOCUMENTS[:36]
