"""`tfds:wiki40b/ja` through TFDS's own builder, offline."""

import http.server
import logging
import threading

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles
from bigbird_ja.text import corpus as corpus_lib
from bigbird_ja.text.corpus import open_corpus
from testkit import tfds_stand_in

DOCUMENTS = list(articles.documents(40, 1, 500))
SIZES = {"train": 36, "validation": 2, "test": 2}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("tfds"))
    tfds_stand_in.write(directory, DOCUMENTS, SIZES)
    return directory


def test_splits_come_in_order_with_fingerprints_of_their_own(prepared):
    splits = {
        "tfds:wiki40b/ja": DOCUMENTS[:36],
        "tfds:wiki40b/ja:train": DOCUMENTS[:36],
        "tfds:wiki40b/ja:validation": DOCUMENTS[36:38],
        "tfds:wiki40b/ja:train[10:13]+test": DOCUMENTS[10:13] + DOCUMENTS[38:],
        "tfds:wiki40b/ja:1.3.0:test": DOCUMENTS[38:],
    }
    fingerprints = set()
    for source, texts in splits.items():
        corpus = open_corpus([source], prepared)
        assert list(corpus.texts()) == texts, source
        fingerprints.add(corpus.fingerprint)
    assert len(fingerprints) == len(splits) - 1
    assert open_corpus(["tfds:wiki40b/ja"], prepared).sources == ["tfds:wiki40b/ja:1.3.0:train"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tfds:wiki40b/ja:dev", "no split 'dev': there are .*train"),
        ("tfds:wiki40b/ja:train[", "no split"),
        ("tfds:wiki40b/xx", "not prepared in .*gsutil -m cp -r"),
        ("tfds:wiki40b/ja:2.0.0", "not prepared in"),
        ("tfds:", "write it as tfds:wiki40b/ja"),
    ],
)
def test_unknown_data_sets_and_splits_are_refused(prepared, source, message):
    with pytest.raises(BadInput, match=message):
        open_corpus([source], prepared)


def test_warnings_of_tfds_itself_are_not_shown(tmp_path, monkeypatch):
    shown = []
    handler = logging.Handler(logging.WARNING)
    monkeypatch.setattr(handler, "emit", shown.append)
    logging.getLogger("absl").addHandler(handler)
    with pytest.raises(BadInput, match="not prepared"):
        open_corpus(["tfds:wiki40b/ja"], str(tmp_path))
    logging.getLogger("absl").removeHandler(handler)
    assert shown == []


def test_without_data_the_public_copy_is_read_where_it_answers(prepared, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    monkeypatch.setattr(corpus_lib, "_PUBLIC_URL", "http://127.0.0.1:1/datasets")
    with pytest.raises(BadInput, match=r"cannot be reached .*--tfds_data_dir DIR"):
        open_corpus(["tfds:wiki40b/ja"])
    monkeypatch.setattr(corpus_lib, "PUBLIC_COPY", prepared)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request).start()  # 501: something answers
        monkeypatch.setattr(corpus_lib, "_PUBLIC_URL", f"http://127.0.0.1:{server.server_port}")
        assert list(open_corpus(["tfds:wiki40b/ja"]).texts()) == DOCUMENTS[:36]
