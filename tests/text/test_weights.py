"""SRC=WEIGHT: what is a weight, what is a path that holds "=", and what is neither."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import tfds_source
from bigbird_ja.text.corpus import SUFFIXES, open_corpus
from bigbird_ja.text.weights import split_weight


def split(source: str) -> tuple[str, float | None]:
    return split_weight(source, SUFFIXES, tfds_source.PREFIX)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("a.jsonl", ("a.jsonl", None)),
        ("a.jsonl=2", ("a.jsonl", 2.0)),
        ("a.jsonl=0.25", ("a.jsonl", 0.25)),
        ("a.jsonl=1e-3", ("a.jsonl", 0.001)),
        ("news/*.txt.gz=3", ("news/*.txt.gz", 3.0)),
        ("gs://b/day=1/x.parquet=2", ("gs://b/day=1/x.parquet", 2.0)),
        ("gs://b/day=1/=2", ("gs://b/day=1/", 2.0)),
        ("tfds:wiki40b/ja:train[:10%]=2", ("tfds:wiki40b/ja:train[:10%]", 2.0)),
        ("lang=ja/a.jsonl", ("lang=ja/a.jsonl", None)),
        ("gs://b/day=1/", ("gs://b/day=1/", None)),
        ("a=2.jsonl", ("a=2.jsonl", None)),
        ("gs://b/a.jsonl=b.jsonl", ("gs://b/a.jsonl=b.jsonl", None)),
        ("somewhere/lang=ja", ("somewhere/lang=ja", None)),  # "no such file" is said of it
        ("=2", ("=2", None)),
        ("", ("", None)),
    ],
)
def test_what_follows_the_last_sign_is_a_weight_if_it_can_be_one(
    source: str, found: tuple[str, float | None]
) -> None:
    assert split(source) == found


@pytest.mark.parametrize(
    "weight",
    ["0", "-1", "nan", "inf", "-inf", "1e400", "0.00001", "1001", "", "two", "1,5", "1_0", "２",
     "2x", "0x10", "9" * 500, "2\0", "%"],
)  # fmt: skip
def test_a_weight_that_cannot_be_is_one_line_and_names_it(weight: str) -> None:
    with pytest.raises(BadInput, match=r"weight=.*SRC=WEIGHT") as error:
        split(f"a.jsonl={weight}")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_path_that_ends_like_a_weight_is_usable(tmp_path: Path) -> None:
    folder = tmp_path / "day=2"
    folder.mkdir()
    (folder / "x.txt").write_text("一\n\n二", encoding="utf-8")
    assert split(str(folder)) == (str(folder), None)
    assert split(f"{folder}=0.5") == (str(folder), 0.5)
    assert split(f"{folder}/") == (f"{folder}/", None)
    plain, weighted = (open_corpus([str(folder) + end], takes_weights=True) for end in ("", "=0.5"))
    assert plain.sources == weighted.sources == [os.path.join(folder, "x.txt")]
    assert plain.weights == [] and weighted.weights == [(plain.fingerprint, 0.5)]


def test_a_part_without_a_weight_has_one_where_others_have(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    inputs = [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    assert open_corpus(inputs, takes_weights=True).weights == []
    found = open_corpus([inputs[0], f"{inputs[1]}=3"], takes_weights=True)
    assert [weight for _, weight in found.weights] == [1.0, 3.0]
    assert found.fingerprint == open_corpus(inputs).fingerprint
    assert [d.text for d in found.documents()] == ["a", "b"]
    assert [d.index for d in found.documents()] == [0, 1]


def test_who_takes_no_weights_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(BadInput, match="weights are for make-data: leave =2 out"):
        open_corpus([f"{tmp_path}/a.txt=2"])


def test_one_source_cannot_have_two_weights(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(BadInput, match="more than once"):
        open_corpus([f"{tmp_path}/a.txt=2", f"{tmp_path}/a.txt=1"], takes_weights=True)
