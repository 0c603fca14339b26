"""Tokenizers of Hugging Face folders: transformers' ids, special pieces by name, whole words."""

from __future__ import annotations

import importlib.util
import itertools
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the huggingface extra")

from bigbird_ja.process.errors import BadInput
from bigbird_ja.text import articles, folder_files, tokenizer, words
from bigbird_ja.text.corpus import open_corpus
from testkit import tokenizer_folders

HARD = (
    "", " 前後に空白 ", "半角ｶﾞｷﾞ、全角ＡＢＣ、㌔①", "か\u3099き\u3099",
    "改行\nと\r\nタブ\tと  二つの空白", "x" * 300, "|||IP_ADDRESS|||",
    "絵文字😀👨‍👩‍👧と𠮷野家ヷ", "Deep learning isn't   new。", "_START_ARTICLE_\n題",
)  # fmt: skip


HAS_MECAB = importlib.util.find_spec("fugashi") is not None
without_mecab = pytest.mark.skipif(not HAS_MECAB, reason="needs the words extra")


def each_kind(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrises by `kind`, or by a case of one."""
    kinds = [pytest.param(name, marks=without_mecab if "MeCab" in name else ()) for name in names]
    return pytest.mark.parametrize("kind", kinds)


@pytest.fixture(scope="module")
def folders(once: Callable[..., Path]) -> dict[str, Path]:
    """A folder of each kind, trained on generated articles."""
    texts = list(articles.documents(40, seed=5))

    def make(folder: Path) -> None:
        for kind, train in tokenizer_folders.KINDS.items():
            if HAS_MECAB or "MeCab" not in kind:
                train(folder / kind, texts)

    made = once("tokenizer-folders", make)
    return {kind: made / kind for kind in tokenizer_folders.KINDS}


def transformers_ids(folder: Path, texts: list[str]) -> list[list[int]]:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    return theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]


def marked(tok: tokenizer.Tokenizer, text: str, by: str = "script") -> list[str]:
    """The words that a text is cut into, as their pieces are written."""
    ids = tok.encode_arrays([text])
    (starts,) = words.word_marker(by, tok)([text], ids)
    surface, offsets = tok.surface_and_offsets(text, ids[0])
    heads = [*offsets[starts].tolist(), len(surface)]
    return [surface[a:b] for a, b in itertools.pairwise(heads)]


@pytest.mark.both
@each_kind(tokenizer_folders.KINDS)
def test_ids_are_those_of_transformers(kind: str, folders: Mapping[str, Path]) -> None:
    ours = tokenizer.load_any(str(folders[kind]))
    texts = [*HARD, *articles.documents(20, seed=6)]
    assert ours.encode_batch(texts) == transformers_ids(folders[kind], texts)
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.encode_batch(texts) == ours.encode_batch(texts)


@pytest.mark.timeout(600)
@each_kind(tokenizer_folders.KINDS)
def test_ids_of_real_documents_are_those_of_transformers(
    kind: str, real_text_path: str, once: Callable[..., Path]
) -> None:
    texts = list(itertools.islice(open_corpus([real_text_path]).texts(), 500))
    trained = once(f"real {kind}", lambda f: tokenizer_folders.KINDS[kind](f, texts[:60]))
    ours = tokenizer.load_any(str(trained))
    assert ours.encode_batch(texts) == transformers_ids(trained, texts)


@each_kind(tokenizer_folders.KINDS)
def test_special_pieces_go_by_name_and_never_come_out_of_text(
    kind: str, folders: Mapping[str, Path]
) -> None:
    import transformers

    ours = tokenizer.load_any(str(folders[kind]))
    theirs = transformers.AutoTokenizer.from_pretrained(str(folders[kind]))
    for part in ("pad", "unk", "mask"):
        assert getattr(ours.special, part) == getattr(theirs, f"{part}_token_id")
    for part, other in (("cls", "bos"), ("sep", "eos")):
        stated = getattr(theirs, f"{part}_token_id")
        stated = getattr(theirs, f"{other}_token_id") if stated is None else stated
        assert getattr(ours.special, part) == stated
    assert ours.vocab_size == len(theirs) and ours.special.article is None
    core = [getattr(ours.special, part) for part in ("pad", "cls", "sep", "mask")]
    spelt = "".join(ours.pieces[i] for i in core)
    assert not {*core} & {*ours.encode(f"東京{spelt}都 {spelt}")}
    assert ours.special.mask in ours.encode_with_masks("日本の[MASK]は東京")
    unused = {i for i, piece in enumerate(theirs.convert_ids_to_tokens(range(len(theirs))))
              if "unused" in piece}  # fmt: skip
    assert unused <= {*ours.special_ids.values()}


TEXT = "雪浜火祭り（祭）は、毎年7月 GPS GPS。𠮷"
IN_BPE = ["雪浜火祭り", "（", "祭", "）", "は", "、", "毎年", "7", "月", "▁GPS", "▁GPS", "。", "𠮷"]
WORDS = {
    "byte-level BPE": IN_BPE,
    "RoBERTa's BPE": ["▁雪浜火祭り", *IN_BPE[1:]],
    "WordPiece": list("雪浜火祭り（祭）は、毎年7月") + ["GPS", "GPS", "。", "\ufffd"],
    "Unigram with bytes": [
        "▁雪浜火祭り", "(", "祭", ")は、", "毎年", "7", "月", "▁GPS", "▁GPS", "。", "𠮷"
    ],
    "MeCab with WordPiece": [
        "雪", "浜", "火祭り", "(", "祭", ")", "は", "、", "毎年", "7", "月", "GPS", "GPS", "。",
        "\ufffd",
    ],
}  # fmt: skip


@each_kind(WORDS)
def test_words_begin_where_the_kind_marks_them(kind: str, folders: Mapping[str, Path]) -> None:
    ours = tokenizer.load_any(str(folders[kind]))
    assert [word.replace(" ", "▁") for word in marked(ours, TEXT)] == WORDS[kind]


@each_kind(tokenizer_folders.KINDS)
def test_surface_and_written_pieces_agree(kind: str, folders: Mapping[str, Path]) -> None:
    ours = tokenizer.load_any(str(folders[kind]))
    for text in HARD:
        ids = ours.encode_arrays([text])[0]
        surface, offsets = ours.surface_and_offsets(text, ids)
        assert len(offsets) == len(ids) and (np.diff(offsets) >= 0).all()
        for i, offset in zip(ids, offsets, strict=True):
            if ours.is_text_piece[i]:
                assert surface.replace(" ", "▁").startswith(ours.written[i], offset)
    if not HAS_MECAB:
        return
    by_mecab = marked(ours, "この祭りは毎年行われる。", "mecab")
    assert "".join(by_mecab).strip("▁ ") == "この祭りは毎年行われる。" and "毎年" in by_mecab


def test_the_files_are_one_file_of_the_same_bytes(folders: Mapping[str, Path], tmp_path) -> None:
    folder = folders["WordPiece"]
    ours = tokenizer.load_any(str(folder))
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.json").write_text("{}")
    assert tokenizer.load_any(str(copy)).model_bytes == ours.model_bytes
    path = tmp_path / "tokenizer.model"
    path.write_bytes(ours.model_bytes)
    again = tokenizer.load(str(path))
    assert (again.sha256, again.special_ids) == (ours.sha256, ours.special_ids)
    path.write_bytes(ours.model_bytes[:-100])
    with pytest.raises(BadInput, match="damaged archive"):
        tokenizer.load(str(path))


def test_tokenizer_json_wins_over_a_sentencepiece_model_that_is_not_ours(
    folders: Mapping[str, Path], tokenizer_path: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["Unigram with bytes"], tmp_path / "both")
    alone = tokenizer.load_any(str(folder))
    (folder / "tokenizer.model").write_bytes(b"another project's")
    assert tokenizer.load_any(str(folder)).special == alone.special
    shutil.copy(tokenizer_path, folder / "spiece.model")
    assert tokenizer.load_any(str(folder)).special.article == 7, "as `export` writes them"


def changed(folder: Path, name: str, **values: Any) -> None:
    """Sets keys of a JSON file, which alone has them."""
    content = json.loads((folder / name).read_text()) | values
    (folder / name).write_text(json.dumps(content))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


BAD: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "cut short": (
        "WordPiece",
        lambda f: (f / "tokenizer.json").write_bytes((f / "tokenizer.json").read_bytes()[:999]),
        r"tokenizer\.json: not JSON",
    ),
    "no tokenizer.json": (
        "WordPiece", lambda f: (f / "tokenizer.json").write_text("{}"), "model is missing",
    ),
    "of another format": (
        "WordPiece",
        lambda f: changed(f, "tokenizer.json", model={"type": "New", "vocab": {"[UNK]": 1}}),
        "cannot read it",
    ),
    "no mask": (
        "WordPiece", lambda f: changed(f, "tokenizer_config.json", mask_token="<x>"),
        "no piece for mask_token",
    ),
    "one piece for two": (
        "RoBERTa's BPE", lambda f: changed(f, "tokenizer_config.json", pad_token="</s>"),
        "plays two parts",
    ),
    "MeCab's place taken by jumanpp": (
        "MeCab with WordPiece",
        lambda f: changed(f, "tokenizer_config.json", word_tokenizer_type="jumanpp"),
        "only mecab with wordpiece",
    ),
    "options of MeCab": (
        "MeCab with WordPiece",
        lambda f: changed(
            f, "tokenizer_config.json", mecab_kwargs={"mecab_option": "-o /tmp/x"}
        ),
        "without options",
    ),
    "unreadable": (
        "byte-level BPE", lambda f: changed(f, "tokenizer.json", normalizer={"type": "None"}),
        "cannot read it",
    ),
}  # fmt: skip


@each_kind(BAD)
def test_bad_folders_are_one_line(kind: str, folders: Mapping[str, Path], tmp_path: Path) -> None:
    whole, spoil, message = BAD[kind]
    folder = shutil.copytree(folders[whole], tmp_path / "bad")
    spoil(folder)
    with pytest.raises(BadInput, match=message) as refused:
        tokenizer.load_any(str(folder))
    assert "\n" not in str(refused.value)


def test_what_is_not_installed_is_named(
    folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput, match=r"bigbird-ja\[huggingface\]"):
        tokenizer.load_any(str(folders["byte-level BPE"]))
    packed = folder_files.Files.read(str(folders["byte-level BPE"])).pack()
    assert tokenizer.from_bytes(packed, "x").special.mask > 0, "training needs no such package"
