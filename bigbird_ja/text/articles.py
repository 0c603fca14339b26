"""Generated Japanese encyclopedia articles in Wiki40b's layout, reproducible by seed.

Article i of a seed is a pure function of (seed, i). Articles contain a few hundred to tens of
thousands of characters. Longer articles state invented facts, and repeat them hundreds to thousands
of tokens later:

    その合言葉は「颯椿」である。 ... 前述のとおり、合言葉は「颯椿」である。

The quoted name is drawn from at least 10,000 names. So a model can predict the later mention only
if it sees the first one. `scripts/probe.py` measures such predictions. Words and sentences are in
`article_words.yaml` and `article_sentences.yaml`. A change of either file changes every article.

Wiki40b's layout: Guo et al. 2020, "Wiki-40B: Multilingual Language Model Dataset".
"""

import functools
import gzip
import heapq
import json
import math
import os
import random
import string
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import IO, Any, cast

import yaml

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import Progress, log
from bigbird_ja.storage import outputs
from bigbird_ja.storage.ownership import FILES, FileVersion, Owned
from bigbird_ja.text.markers import ARTICLE, NEWLINE, PARAGRAPH, SECTION

_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")
# Range of an article's length in characters, and the standard deviation of the length's logarithm.
_MIN_LENGTH, _MAX_LENGTH = 250, 40_000
_SPREAD = 1.0

# Range of distances between a fact and its repetition, in characters (about 1.6 per token).
_MIN_DISTANCE, _MAX_DISTANCE = 320, 13_000

# Slots of the sentence templates, and the kind of random word that fills each slot.
_WORD_SLOTS = {
    "物": "things", "形": "adjectives", "事": "events", "業": "fields", "片": "katakana",
    "英": "latin", "色": "colors", "言": "sayings", "叫": "exclamations", "書": "books",
}  # fmt: skip
_FULL_WIDTH = str.maketrans("0123456789.", "０１２３４５６７８９．")


def _read(name: str) -> dict[str, Any]:
    # CSafeLoader is ten times as fast as SafeLoader.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    result: dict[str, Any] = yaml.load(text, loader)  # noqa: S506 (both are safe)
    return result


WORDS = _read("article_words.yaml")
_SENTENCES = _read("article_sentences.yaml")


def generate(count: int, seed: int, mean_length: int = 3000, facts: float = 1.0) -> Iterator[str]:
    """Yield the first `count` articles that a seed determines.

    Args:
        count: number of articles.
        seed: seed of the whole corpus.
        mean_length: mean length in characters over many articles.
        facts: facts per 1,000 characters, each repeated one to three times. If there are not enough
            kinds of facts for a long article, its facts are repeated more often.
    """
    for index in range(count):
        yield _Writer(random.Random(f"{seed}/{index}"), mean_length, facts).write()


@functools.cache
def _parse_slots(sentence: str) -> tuple[tuple[str, str], ...]:
    """Parse a template into pairs: a literal text, and the name of the next slot ("" for none)."""
    return tuple(
        (literal, slot or "") for literal, slot, _, _ in string.Formatter().parse(sentence)
    )


def render(title: str, sections: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Format an article in Wiki40b's layout.

    Args:
        title: title of the article.
        sections: heading and paragraphs of each section. The lead section has the heading "".
    """
    parts = [f"\n{ARTICLE}\n{title}"]
    for heading, paragraphs in sections:
        if heading:
            parts.append(f"\n{SECTION}\n{heading}")
        if paragraphs:
            parts.append(f"\n{PARAGRAPH}\n{NEWLINE.join(paragraphs)}")
    return "".join(parts)


class _Writer:
    """Writer of one article, with one random stream."""

    def __init__(self, rng: random.Random, mean_length: int, facts: float) -> None:
        self._random = rng.random
        # The length is log-normal. A log-normal variable exp(N(mu, s^2)) has the mean
        # exp(mu + s^2 / 2), so mu is log(mean_length) - s^2 / 2.
        length = math.exp(rng.gauss(math.log(mean_length) - _SPREAD**2 / 2, _SPREAD))
        self._target = int(min(max(length, _MIN_LENGTH), _MAX_LENGTH))
        self._written = 0
        self._kind = _SENTENCES["kinds"][self._pick(list(_SENTENCES["kinds"]))]
        self._sentences = self._kind["sentences"] * 2 + _SENTENCES["generic"]
        self._slots = self._make_slots(self._pick(self._kind["suffixes"]))
        self._plan_facts(int(self._target * facts / 1000))

    def write(self) -> str:
        """Compose the article, and return it in Wiki40b's layout."""
        lead = self._fill(self._pick(self._kind["openings"])) + self._write_paragraph(2)
        sections = [("", [lead])]
        headings = list(self._kind["headings"])
        while self._written < self._target:
            if not headings:
                headings = [
                    f"{name}（{self._draw_word('fields')}）" for name in self._kind["headings"]
                ]
            heading = headings.pop(self._draw_below(len(headings)))
            count = 1 + self._draw_below(3)
            paragraphs: list[str] = []
            while len(paragraphs) < count and self._written < self._target:
                paragraphs.append(self._write_paragraph(2 + self._draw_below(6)))
            sections.append((heading, paragraphs))
        return render(str(self._slots["題"]), sections)

    def _write_paragraph(self, sentences: int) -> str:
        parts = []
        for _ in range(sentences):
            parts += self._take_due_facts()
            chance = self._random()
            if chance < 0.12:
                parts.append(self._fill(self._pick(_SENTENCES["quoted"])))
                continue
            if chance < 0.4:
                parts.append(self._fill(self._pick(_SENTENCES["connectives"])))
            parts.append(self._fill(self._pick(self._sentences)))
        return "".join(parts)

    def _plan_facts(self, count: int) -> None:
        """Plan where `count` facts are stated and repeated.

        Each entry of the heap `_due` contains the position in characters, a tie-break, the kind of
        the fact, the quoted name, and whether the entry repeats the fact.
        """
        kinds = [k for _, k in sorted((self._random(), k) for k in WORDS["fact_kinds"])][:count]
        if count > len(kinds):  # A random number of kinds varies the difficulty of articles.
            kinds = kinds[: 2 + self._draw_below(len(kinds) - 1)]
        more = 3 * (count - len(kinds)) // max(1, len(kinds))
        self._due: list[tuple[int, int, str, str, bool]] = []
        for kind in kinds:
            letters = 2 + self._draw_below(2)
            name = "".join(self._draw_word("fact_letters") for _ in range(letters))
            at = int(self._random() * 0.6 * self._target)
            self._due.append((at, len(self._due), kind, name, False))
            for _ in range(1 + self._draw_below(3) + more):
                room = self._target - at
                if room <= _MIN_DISTANCE:
                    break
                farthest = math.log(min(_MAX_DISTANCE, room) / _MIN_DISTANCE)
                distance = _MIN_DISTANCE * math.exp(self._random() * farthest)
                self._due.append((at + int(distance), len(self._due), kind, name, True))
        heapq.heapify(self._due)

    def _take_due_facts(self) -> list[str]:
        stated = []
        while self._due and self._due[0][0] <= self._written:
            _, _, self._slots["種"], self._slots["名"], again = heapq.heappop(self._due)
            sentences = _SENTENCES["fact_again" if again else "fact_first"]
            stated.append(self._fill(self._pick(sentences)))
        return stated

    def _fill(self, sentence: str) -> str:
        parts = []
        for literal, slot in _parse_slots(sentence):
            parts.append(literal)
            if slot:
                value = self._slots[slot]
                parts.append(value if isinstance(value, str) else value())
        text = "".join(parts)
        self._written += len(text)
        return text

    def _make_slots(self, suffix: str) -> dict[str, str | Callable[[], str]]:
        """For each slot of the templates, return its value or a function that draws a value.

        A fixed value, such as the subject, is the same in the whole article. A function draws a new
        value each time the slot is filled.
        """
        place = self._draw_place()
        subject = place + suffix if suffix else self._draw_person()
        return {
            "題": subject,
            "地": self._draw_place(),
            "県": self._draw_word("prefectures"),
            "主": self._draw_person(),
            "友": self._draw_person(),
            "読": "".join(self._draw_word("kana") for _ in range(3 + self._draw_below(5))),
            "人": self._draw_person,
            "町": self._draw_place,
            "年": self._draw_era_year,
            "西暦": lambda: str(1700 + self._draw_below(325)),
            "月日": lambda: f"{1 + self._draw_below(12)}月{1 + self._draw_below(28)}日",
            "数": lambda: str(2 + self._draw_below(98)),
            "大数": self._draw_large_number,
            "小数": self._draw_decimal,
            "度": lambda: f"{1 + self._random() * 38:.1f}",
            "生没": self._draw_life,
            **{
                slot: functools.partial(self._draw_word, kind) for slot, kind in _WORD_SLOTS.items()
            },
        }

    def _draw_word(self, kind: str) -> Any:
        return self._pick(WORDS[kind])

    def _draw_person(self) -> str:
        return "".join(map(self._draw_word, ("surname_heads", "surname_tails", "given_names")))

    def _draw_place(self) -> str:
        return "".join(map(self._draw_word, ("place_heads", "place_tails")))

    def _draw_era_year(self) -> str:
        name, first, years = self._draw_word("eras")
        n = self._draw_below(years)
        return f"{name}{n + 1 if n else '元'}年（{first + n}年）"

    def _draw_life(self) -> str:
        born = 1700 + self._draw_below(230)
        return f"{born}年 - {born + 35 + self._draw_below(60)}年"

    def _draw_large_number(self) -> str:
        n = int(10 ** (3 + 5 * self._random()))
        if n < 10_000 or self._random() < 0.3:
            return f"{n:,}"
        return f"{n // 10_000}万{n % 10_000 or ''}"

    def _draw_decimal(self) -> str:
        number = f"{self._random() * 100:.{1 + self._draw_below(2)}f}"
        return number if self._random() < 0.9 else number.translate(_FULL_WIDTH)

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._random() * len(choices))]

    def _draw_below(self, n: int) -> int:
        return int(self._random() * n)


@dataclass(frozen=True)
class SampleResult:
    """Size and path of a generated corpus, and the seconds that the command took."""

    documents: int
    characters: int
    bytes: int
    seconds: float
    output: str


def sample(
    *,
    output: str | os.PathLike[str],
    documents: int = 2000,
    seed: int = 1,
    mean_length: int = 3000,
    facts_per_1000_characters: float = 1.0,
    overwrite: bool = False,
) -> SampleResult:
    """Write a generated Japanese corpus, unless the file already contains it.

    Args:
        output: file that ends in .jsonl, .jsonl.gz or .txt, on disk or gs://.
        documents: number of articles.
        seed: random seed.
        mean_length: mean length of an article, in characters.
        facts_per_1000_characters: facts per 1,000 characters, each repeated later in the article.
        overwrite: whether to replace an existing generated corpus, and to keep the old one as
            OUTPUT.replaced-N.

    Raises:
        BadInput: The file exists with different content, and `overwrite` is false. Or `overwrite`
            is true, and this program did not write the file.
    """
    path, started = os.fspath(output), time.monotonic()
    characters = size = 0

    def count() -> Iterator[str]:
        nonlocal characters, size
        texts = generate(documents, seed, mean_length, facts_per_1000_characters)
        with Progress(documents, "documents") as progress:
            for text in texts:
                characters += len(text)
                size += len(text.encode())
                progress.update()
                yield text

    if not _write_file(path, count(), overwrite):
        log(f"{path} is finished already: nothing to do")
    seconds = round(time.monotonic() - started, 3)
    return SampleResult(documents, characters, size, seconds, path)


def _write_file(path: str, texts: Iterator[str], overwrite: bool) -> bool:
    """Write the documents and return True, or return False if the file already contains them.

    Raises:
        BadInput: The file exists with different content.
    """
    folder, name = storage.get_directory(path), storage.get_base_name(path)
    if not path.endswith(_SUFFIXES):
        raise BadInput(f"`output` {path}: the name must end in {', '.join(_SUFFIXES)}")
    outputs.check_output_file(path, "`output`", replaces=overwrite)
    if overwrite or not storage.exists(path):
        with outputs.create_folder(folder), Owned.create(folder, FILES).writing(name) as file:
            _encode(path, texts, file)
        return True
    with tempfile.NamedTemporaryFile() as scratch:
        _encode(path, texts, scratch)
        scratch.flush()
        is_same = FileVersion.from_file(scratch.name) == FileVersion.from_file(path)
    if not is_same:
        raise BadInput(
            f"{path} exists with another content: choose another `output`, or use `overwrite` if"
            " the file is a generated corpus"
        )
    return False


def _encode(path: str, texts: Iterator[str], file: IO[bytes]) -> None:
    """Write the documents in the format that the suffix of `path` states."""
    if path.endswith(".gz"):
        # The gzip header contains no name and no time, so equal documents give equal bytes.
        with gzip.GzipFile("", "wb", compresslevel=5, fileobj=file, mtime=0) as packed:
            _encode(path.removesuffix(".gz"), texts, cast("IO[bytes]", packed))
        return
    for index, text in enumerate(texts):
        if path.endswith(".txt"):
            file.write(f"{text.strip()}\n\n".encode())
        else:
            line = json.dumps({"id": f"sample-{index:06d}", "text": text}, ensure_ascii=False)
            file.write(f"{line}\n".encode())
