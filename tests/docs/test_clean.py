"""`docs/examples/clean.py` keeps good texts, and removes duplicates and texts that break a rule."""

import gzip
import importlib
import json
import sys

import pytest

from bigbird_ja.text.corpus import open_corpus
from testkit import ROOT

pytest.importorskip(
    "datatrove", reason="cleaning needs datatrove (docs/examples/clean.py says how)"
)
pytestmark = pytest.mark.slow
sys.path.insert(0, str(ROOT / "docs/examples"))
clean = importlib.import_module("clean")

TEXTS = json.loads((ROOT / "tests/fixtures/web.json").read_text("utf-8"))
LAKE, NEARLY, TOFU, DIARY, CHINESE, ENGLISH, SPAM, MENU, KEYWORDS = TEXTS.values()


@pytest.fixture
def web(tmp_path):
    """Return a folder with two files of texts, one of them compressed."""
    folder = tmp_path / "web"
    folder.mkdir()
    files = {
        "a.jsonl": [LAKE, CHINESE, TOFU, SPAM],
        "b.jsonl.gz": [MENU, NEARLY, DIARY, KEYWORDS, ENGLISH, DIARY],
    }
    for name, texts in files.items():
        opened = gzip.open if name.endswith(".gz") else open
        with opened(folder / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": t, "url": "example.org"}) + "\n" for t in texts)
    return folder


def removed(output):
    """Return the texts that each rule removed."""
    texts = {}
    for rule in clean.REMOVED:
        files = (output / "removed" / rule).glob("*.jsonl.gz")
        lines = b"".join(gzip.decompress(f.read_bytes()) for f in files).splitlines()
        texts[rule] = {json.loads(line)["text"] for line in lines}
    return texts


def test_one_of_each_good_text_stays_and_junk_is_filed_under_its_rule(
    web, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "cleaned"
    call = ["clean", f"--input={web}", f"--output={output}", "--workers=1"]
    monkeypatch.setattr(sys, "argv", call)
    clean.main()
    printed = capsys.readouterr().out
    assert printed.startswith("text: 3 documents\nremoved/language: 2 documents\n")
    texts = list(open_corpus([str(output / "text")]).texts())  # as make-data reads them
    lake = next(t for t in texts if t in {LAKE, NEARLY})
    assert sorted(texts) == sorted([lake, TOFU, DIARY])
    assert removed(output) == {
        "language": {CHINESE, ENGLISH},
        "repetition": {SPAM},
        "lines": {MENU},
        "words": {KEYWORDS},
        "duplicates": {LAKE, NEARLY, DIARY} - {lake},
    }
    clean.main()  # A rerun prints the same report, and does not process finished files again.
    assert capsys.readouterr().out == printed
    (web / "a.jsonl").write_text('{"text": "別の文書"}\n', "utf-8")
    with pytest.raises(SystemExit, match="begun with other files"):
        clean.main()
