"""What the card says of language and sources, and what it keeps to itself."""

from __future__ import annotations

import dataclasses
import os

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.export import huggingface, model_card, source
from bigbird_ja.export.source import Source

pytest.importorskip("safetensors", reason="needs the huggingface extra")


@pytest.fixture(scope="module")
def trained(small_run) -> Source:
    return source.with_data_set(source.load(small_run.model_dir), small_run.data_dir)


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """A tokenizer as far as the card asks for its language."""

    pieces: list[str]


@pytest.mark.parametrize(
    ("sources", "pieces", "code"),
    [
        (("tfds:wiki40b/ja:1.3.0:train",), ["the"], "ja"),
        (("tfds:wiki40b/en:1.3.0:train", "tfds:wiki40b/en:1.3.0:test"), ["の"], "en"),
        (("tfds:wiki40b/zh-cn:1.3.0:train",), ["的"], "zh-cn"),
        (("tfds:wiki40b/en:1.3.0:train", "tfds:wiki40b/ja:1.3.0:train"), ["の", "the"], "ja"),
        (("/home/me/text.jsonl",), ["の", "は", "日本", "the"], "ja"),
        (("/home/me/text.jsonl",), ["the"] * 99 + ["の"], None),
        (("/home/me/text.jsonl",), ["的", "中国"], None),
    ],
)
def test_its_language_is_that_of_the_text(
    trained: Source, sources: tuple[str, ...], pieces: list[str], code: str | None
) -> None:
    assert trained.manifest
    manifest = dataclasses.replace(trained.manifest, sources=sources)
    other = dataclasses.replace(trained, manifest=manifest, tokenizer=_Pieces(pieces))
    assert model_card.language(other) == code
    front = model_card._front_matter(other, model_card.Options("x"))
    assert ("language:" in front) == (code is not None)
    assert ("日本の首都" in model_card._usage(other)) == (code == "ja")


def test_the_folder_holds_no_path_of_this_machine(
    small_run, run_cli, tmp_path, trained: Source
) -> None:
    folder = tmp_path / "hf"
    ended = run_cli(
        "export", f"--model_dir={small_run.model_dir}", f"--data_dir={small_run.data_dir}",
        f"--output_dir={folder}", "--parity_sequences=0",
    )  # fmt: skip
    assert ended.status == 0, ended.stderr
    secret = os.path.dirname(small_run.corpus)
    for path in folder.iterdir():
        content = path.read_bytes()
        for words in (secret, small_run.data_dir, small_run.model_dir, str(tmp_path)):
            assert words.encode() not in content, f"{path.name} tells of {words}"
    assert os.path.basename(small_run.corpus) in (folder / "README.md").read_text("utf-8")
    modes = {path.name: oct(path.stat().st_mode) for path in folder.iterdir()}
    assert len(set(modes.values())) == 1, modes


def test_mixed_corpora_are_named_with_their_share_and_loss(trained: Source) -> None:
    assert trained.manifest
    taken = manifest_lib.Share(3, trained.manifest.train.tokens // 4, 2)
    corpora = tuple(
        manifest_lib.MixedCorpus(f"/home/me/{name}.jsonl", "", weight, taken, taken)
        for name, weight in (("news", 2.0), ("books", 0.5))
    )
    row = {"name": "news.jsonl", "count": 5, "loss": 1.25, "accuracy": 0.5}
    other = dataclasses.replace(
        trained,
        manifest=dataclasses.replace(trained.manifest, corpora=corpora),
        evaluation={"masked_lm_loss": 2.0, "masked_lm_accuracy": 0.5, "by_sub_corpus": [row]},
    )
    data = model_card._data(other)
    assert "news.jsonl (2 times per epoch, 25.0% of the tokens), books.jsonl (0.5 times" in data
    assert "/home/me" not in data
    assert "held-out text of news.jsonl: 1.2500 nats" in model_card._results(other)


def test_a_loss_that_is_no_number_is_said(trained: Source) -> None:
    evaluation = {"step": 6, "time": 1.0, "masked_lm_loss": None, "masked_lm_accuracy": 0.5}
    metrics = {"step": 6, "time": 1.0, "loss": None}
    other = dataclasses.replace(trained, evaluation=evaluation, metrics=metrics)
    text = model_card._results(other)
    assert text.count("not a number") == 3 and "50.00%" in text


def test_weights_are_as_readable_as_their_neighbours(trained: Source, tmp_path) -> None:
    before = os.umask(0o027)
    try:
        huggingface.fill(str(tmp_path), trained, model_card.Options("x", parity_sequences=0))
    finally:
        os.umask(before)
    assert oct((tmp_path / "model.safetensors").stat().st_mode & 0o777) == oct(0o640)
