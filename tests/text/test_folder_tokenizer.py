"""Tokenizers of Hugging Face folders: same ids as transformers, special tokens, whole words."""

import contextlib
import importlib.util
import itertools
import json
import pickle
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the huggingface extra")

from bigbird_ja.errors import BadInput
from bigbird_ja.export import tokenizer_files
from bigbird_ja.huggingface.tokenizer import read_tokenizer, read_tokens
from bigbird_ja.text import articles, folder_tokenizer, words
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.text.load import parse_tokenizer
from testkit import ROOT, tokenizer_folders
from tests.text import HARD

HAS_MECAB = importlib.util.find_spec("fugashi") is not None
without_mecab = pytest.mark.skipif(not HAS_MECAB, reason="needs the words extra")


def each_kind(names):
    """Parametrize a test by `kind`. Kinds with MeCab are skipped if it is not installed."""
    kinds = [pytest.param(name, marks=without_mecab if "MeCab" in name else ()) for name in names]
    return pytest.mark.parametrize("kind", kinds)


@pytest.fixture(scope="module")
def folders(once):
    """Return folders by kind of tokenizer. The tokenizers are trained on generated articles."""
    texts = list(articles.generate(40, seed=5))

    def make(folder):
        for kind, train in tokenizer_folders.KINDS.items():
            if HAS_MECAB or "MeCab" not in kind:
                train(folder / kind, texts)

    made = once("tokenizer-folders", make)
    return {kind: made / kind for kind in tokenizer_folders.KINDS}


def transformers_ids(folder, texts, ends=True):
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    return theirs(texts, add_special_tokens=ends, verbose=False)["input_ids"]


def our_ids(ours, texts):
    """Return the token ids of each text between [CLS] and [SEP], as in a training sequence."""
    special = ours.special
    return [[special.cls, *ids, special.sep] for ids in ours.encode_batch(texts)]


def exported(ours, folder, model_type="modernbert"):
    """Write the tokenizer's files as `export` does, and a config.json with the model's type."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name, data in tokenizer_files.make_files(ours, 8192).items():
        (folder / name).write_bytes(data)
    return folder


def marked(tok, text, by="script"):
    """Divide a text at the word starts that the word marker finds."""
    ids = tok.encode_arrays([text])
    (starts,) = words.make_word_marker(by, tok)([text], ids)
    surface, offsets = tok.spell_with_offsets(text, ids[0])
    heads = [*offsets[starts].tolist(), len(surface)]
    return [surface[a:b] for a, b in itertools.pairwise(heads)]


@pytest.fixture(scope="module")
def documents(request):
    """Return hard texts, generated texts, and real texts if these are available."""
    texts = [*HARD, *articles.generate(5, seed=7)]
    with contextlib.suppress(pytest.skip.Exception):
        real = open_corpus([request.getfixturevalue("real_text_path")]).texts()
        texts += itertools.islice(real, 30)
    return texts


@pytest.mark.both
@each_kind(tokenizer_folders.KINDS)
def test_ids_are_those_of_transformers_and_of_the_exported_folder(
    kind, folders, documents, tmp_path
):
    ours = read_tokenizer(str(folders[kind]))
    expected = our_ids(ours, documents)
    assert transformers_ids(folders[kind], documents) == expected
    assert our_ids(pickle.loads(pickle.dumps(ours)), documents) == expected
    for model_type in ("modernbert", "big_bird"):
        back = exported(ours, tmp_path / "back", model_type)
        assert transformers_ids(back, documents) == expected
    assert our_ids(read_tokenizer(str(back)), documents) == expected
    masked = ours.encode_with_masks("日本の[MASK]は東京")
    mask = ours.names[ours.special.mask]
    assert masked == transformers_ids(back, [f"日本の{mask}は東京"], ends=False)[0]


# Ways in which a folder defines the special tokens before and after a text.
TEMPLATES = json.loads((ROOT / "tests/fixtures/ends-of-texts.json").read_text("utf-8"))


@pytest.mark.parametrize("stated", TEMPLATES, ids=lambda stated: stated["name"])
def test_sequences_end_as_the_tokenizer_ends_a_text(stated, folders, tmp_path):
    folder = shutil.copytree(folders["Unigram with bytes"], tmp_path / "theirs")
    changed(folder, "tokenizer_config.json", **stated["config"])
    changed(folder, "tokenizer.json", **stated["definition"])
    ours = read_tokenizer(str(folder))
    assert [ours.written[ours.special.cls], ours.written[ours.special.sep]] == stated["ends"]
    theirs = transformers_ids(folder, ["日本"])[0]
    written = {theirs[0], theirs[-1]} - {*ours.encode("日本")}
    assert written <= {ours.special.cls, ours.special.sep}
    back = exported(ours, tmp_path / "back")
    assert transformers_ids(back, ["日本"]) == our_ids(ours, ["日本"])


@each_kind(tokenizer_folders.KINDS)
def test_special_tokens_are_found_by_name_and_never_encoded_from_text(kind, folders):
    import transformers

    ours = read_tokenizer(str(folders[kind]))
    theirs = transformers.AutoTokenizer.from_pretrained(str(folders[kind]))
    for part in ("pad", "unk", "mask"):
        assert getattr(ours.special, part) == getattr(theirs, f"{part}_token_id")
    assert ours.vocab_size == len(theirs) and ours.special.article is None
    core = [getattr(ours.special, part) for part in ("pad", "cls", "sep", "mask")]
    spelt = "".join(ours.tokens[i] for i in core)
    assert not {*core} & {*ours.encode(f"東京{spelt}都 {spelt}")}
    assert ours.special.mask in ours.encode_with_masks("日本の[MASK]は東京")
    tokens = theirs.convert_ids_to_tokens(range(len(theirs)))
    unused = {i for i, token in enumerate(tokens) if "unused" in token}
    assert unused <= {*ours.special_ids.values()}


TEXT = "雪浜火祭り（祭）は、毎年7月 GPS GPS。𠮷"
IN_BPE = ["雪浜火祭り", "（", "祭", "）", "は", "、", "毎年", "7", "月", "▁GPS", "▁GPS", "。", "𠮷"]
WORDS = {
    "byte-level BPE": IN_BPE,
    "RoBERTa's BPE": ["▁雪浜火祭り", *IN_BPE[1:]],
    "WordPiece": list("雪浜火祭り（祭）は、毎年7月") + ["GPS", "GPS", "。", "\ufffd"],
    "Gemma's BPE with bytes": "雪浜火祭り （ 祭 ）は、 毎年 7月 ▁GPS ▁GPS 。 𠮷".split(),
    "Unigram with bytes": "▁雪浜火祭り ( 祭 )は、 毎年 7 月 ▁GPS ▁GPS 。 𠮷".split(),
    "MeCab with WordPiece": "雪 浜 火祭り ( 祭 ) は 、 毎年 7 月 GPS GPS 。 \ufffd".split(),
}


@each_kind(WORDS)
def test_words_start_as_each_kind_marks_them(kind, folders):
    ours = read_tokenizer(str(folders[kind]))
    assert [word.replace(" ", "▁") for word in marked(ours, TEXT)] == WORDS[kind]


@each_kind(tokenizer_folders.KINDS)
def test_surface_offsets_and_written_tokens_agree(kind, folders):
    ours = read_tokenizer(str(folders[kind]))
    for text in HARD:
        ids = ours.encode_arrays([text])[0]
        surface, offsets = ours.spell_with_offsets(text, ids)
        assert len(offsets) == len(ids) and (np.diff(offsets) >= 0).all()
        for i, offset in zip(ids, offsets, strict=True):
            if ours.is_text_token[i]:
                assert surface.replace(" ", "▁").startswith(ours.written[i], offset)
    if not HAS_MECAB:
        return
    by_mecab = marked(ours, "この祭りは毎年行われる。", "mecab")
    assert "".join(by_mecab).strip("▁ ") == "この祭りは毎年行われる。" and "毎年" in by_mecab


def test_the_archive_has_the_same_bytes_for_the_same_files(folders, tmp_path):
    folder = folders["WordPiece"]
    ours = read_tokenizer(str(folder))
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.json").write_text("{}")
    assert read_tokenizer(str(copy)).model_bytes == ours.model_bytes
    path = tmp_path / "tokenizer.model"
    path.write_bytes(ours.model_bytes)
    again = read_tokenizer(str(path))
    assert (again.sha256, again.special_ids) == (ours.sha256, ours.special_ids)
    for name, message in (
        ("../vocab.txt", "not a relative path inside"),
        ("a.txt", "vocabulary.json"),
    ):
        with pytest.raises(BadInput, match=message):
            parse_tokenizer(folder_tokenizer.pack({name: b"[MASK]"}), "x")
    path.write_bytes(ours.model_bytes[:-100])
    with pytest.raises(BadInput, match="not a whole archive"):
        read_tokenizer(str(path))


def test_tokenizer_json_has_priority_over_a_foreign_sentencepiece_model(
    folders, tokenizer_path, tmp_path
):
    folder = shutil.copytree(folders["Unigram with bytes"], tmp_path / "both")
    alone = read_tokenizer(str(folder))
    (folder / "tokenizer.model").write_bytes(b"another project's")
    assert read_tokenizer(str(folder)).special == alone.special
    shutil.copy(tokenizer_path, folder / "spiece.model")
    assert read_tokenizer(str(folder)).special.article == 7, "as `export` writes them"


def changed(folder, name, **values):
    """Set keys of a JSON file. Remove special_tokens_map.json, which may state the same keys."""
    content = json.loads((folder / name).read_text()) | values
    (folder / name).write_text(json.dumps(content))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


def spoilt(name, **values):
    return lambda folder: changed(folder, name, **values)


def far(folder):
    """Return the tokenizer's model with one id that is far above all others."""
    model = json.loads((folder / FILE).read_text())["model"]
    return {**model, "vocab": {**model["vocab"], "far": 400_000_000}}


def cut_short(folder):
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:999])


FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
UNIGRAM, MECAB = "Unigram with bytes", "MeCab with WordPiece"
START = {"SpecialToken": {"id": "<s>", "type_id": 0}}
TEXT_A = {"Sequence": {"id": "A", "type_id": 0}}
TWICE = {"type": "TemplateProcessing", "single": [START, START, TEXT_A]}
TWICE |= {"pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}
PANIC = {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
NEW = {"type": "New", "vocab": {"[UNK]": 1}}
WRITES = {"mecab_dic": "unidic_lite", "mecab_option": "-o /tmp/x"}
CANNOT = "not a tokenizer that transformers can load"
BAD = {
    "cut short": ("WordPiece", cut_short, CANNOT),
    "another format": ("WordPiece", spoilt(FILE, model=NEW), CANNOT),
    "two at one end": (UNIGRAM, spoilt(FILE, post_processor=TWICE), "adds 2 tokens before"),
    "an id without end": (
        "WordPiece",
        lambda folder: changed(folder, FILE, model=far(folder)),
        "token .* has the id 400,000,000 in a vocabulary of ",
    ),
    "the library panics": (UNIGRAM, spoilt(FILE, normalizer=PANIC), "precompiled_charsmap"),
    "one token for two": ("RoBERTa's BPE", spoilt(CONFIG, pad_token="</s>"), "has two roles"),
    "no such words (MeCab)": (
        MECAB,
        spoilt(CONFIG, word_tokenizer_type="jumanpp"),
        "bad: .*rhoknp",
    ),
    "options of MeCab": (MECAB, spoilt(CONFIG, mecab_kwargs=WRITES), "mecab_option is refused"),
}


@each_kind(BAD)
def test_bad_folders_are_refused_in_one_line(kind, folders, tmp_path):
    whole, spoil, message = BAD[kind]
    folder = shutil.copytree(folders[whole], tmp_path / "bad")
    spoil(folder)
    with pytest.raises(BadInput, match=message) as refused:
        read_tokenizer(str(folder)).encode("")
    assert "\n" not in str(refused.value)


def test_missing_packages_are_named(folders, monkeypatch):
    made = read_tokenizer(str(folders["byte-level BPE"])).model_bytes
    for package in ("transformers", "tokenizers"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadInput, match=r"bigbird-ja\[huggingface"):
        read_tokenizer(str(folders["byte-level BPE"]))
    ours = parse_tokenizer(made, "x")
    assert ours.special.mask > 0 and ours.format_tokens([*range(300, 310)]), (
        "training needs no package"
    )
    with pytest.raises(BadInput, match=r"bigbird-ja\[huggingface"):
        ours.encode("日本")


@each_kind(tokenizer_folders.KINDS)
def test_tokens_are_read_without_packages(kind, folders):
    ours = read_tokenizer(str(folders[kind]))
    tokens = read_tokens(str(folders[kind]))
    assert len(tokens) > 1000 and all(ours.names[i] == token for token, i in tokens.items())
