"""`tfds:wiki40b/ja` through TFDS's own builder, offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import sample, sample_tfds, tfds_source
from bigbird_ja.text.corpus import open_corpus

COUNT = 40


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tfds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_tfds, "_DOCUMENTS_PER_SHARD", 7)
        documents = sample.documents(COUNT, 1, 500)
        sample_tfds.write_tfds(str(directory), documents, COUNT, "a test")
    return str(directory)


def test_tfdss_own_builder_reads_it(prepared: str) -> None:
    import tensorflow_datasets as tfds

    builder = tfds.builder("wiki40b/ja", data_dir=prepared)
    assert type(builder).__name__ == "Wiki40b"
    assert builder.info.splits["train"].num_examples == 36
    assert builder.info.splits["train"].num_shards == 6
    assert builder.info.splits["test"].num_examples == 2


def test_splits_come_in_order(prepared: str) -> None:
    written = list(sample.documents(COUNT, 1, 500))

    def read(source: str) -> list[str]:
        return [d.text for d in open_corpus([source], prepared).documents()]

    assert read("tfds:wiki40b/ja") == read("tfds:wiki40b/ja:train") == written[:36]
    assert read("tfds:wiki40b/ja:validation") == written[36:38]
    assert read("tfds:wiki40b/ja:train[10:13]+test") == written[10:13] + written[38:]
    assert read("tfds:wiki40b/ja:1.3.0:test") == written[38:]


def test_fingerprints(prepared: str) -> None:
    train = open_corpus(["tfds:wiki40b/ja:train"], prepared)
    part = open_corpus(["tfds:wiki40b/ja:train[:50%]"], prepared)
    assert train.fingerprint != part.fingerprint
    assert train.sources == ["tfds:wiki40b/ja:1.3.0:train"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tfds:wiki40b/ja:dev", "no split 'dev': there are .*train"),
        ("tfds:wiki40b/ja:train[", "no split"),
        ("tfds:wiki40b/xx", "not prepared in .*gsutil -m cp -r"),
        ("tfds:wiki40b/ja:2.0.0", "not prepared in"),
        ("tfds:nothing/ja", "not prepared in"),
        ("tfds:", "write it as tfds:wiki40b/ja"),
    ],
)
def test_what_is_refused(prepared: str, source: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        open_corpus([source], prepared)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--tfds_data_dir: no directory .*none"):
        open_corpus(["tfds:wiki40b/ja"], f"{tmp_path}/none")
    with pytest.raises(BadInput, match="not prepared in"):
        open_corpus(["tfds:wiki40b/ja"], str(tmp_path))


def test_without_a_network_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    monkeypatch.setattr(tfds_source, "_PUBLIC_URL", "http://127.0.0.1:1/datasets")
    with pytest.raises(BadInput, match=r"cannot be reached .*--tfds_data_dir=DIR"):
        open_corpus(["tfds:wiki40b/ja"])


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def failing():  # type: ignore[no-untyped-def]
        yield "一"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        sample_tfds.write_tfds(str(tmp_path), failing(), 10, "a test")
    assert [p for p in tmp_path.rglob("*") if p.is_file() or p.name.startswith(".")] == []
    assert sample_tfds.description_of(str(tmp_path)) is None
