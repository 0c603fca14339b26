"""A generated corpus: Japanese encyclopaedia articles in Wiki40b's layout, the same for a seed.

Article i of a seed is a pure function of (seed, i). Articles are a few hundred to tens of
thousands of characters long. Longer ones bind invented names to things and state them again
hundreds to thousands of tokens later:

    その合言葉は「颯椿」である。 ... 前述のとおり、合言葉は「颯椿」である。

The name is one of a million, so only a model that sees the first mention can fill in the later
one. `restated_facts` finds these pairs.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.text import sample_templates as templates
from bigbird_ja.text import sample_words as words
from bigbird_ja.text.wiki40b import Section, render

DEFAULT_MEAN_LENGTH = 3000  # characters
MIN_LENGTH, MAX_LENGTH = 250, 40_000
_SPREAD = 1.0  # of the logarithm of lengths

# Characters between a fact and its restatement; a token is about 1.6 characters.
_MIN_DISTANCE, _MAX_DISTANCE = 320, 13_000
DEFAULT_FACTS = 1.0  # per 1,000 characters

Span = tuple[int, int]
_Slot = str | Callable[[], str]

_FACT = re.compile(f"({'|'.join(words.FACT_KINDS)})は「([^「」]+)」")


def documents(
    count: int,
    seed: int,
    mean_length: int = DEFAULT_MEAN_LENGTH,
    facts: float = DEFAULT_FACTS,
    start: int = 0,
) -> Iterator[str]:
    """Articles `start` to `start + count - 1` of a seed; see `document`."""
    for index in range(start, start + count):
        yield document(index, seed, mean_length, facts)


def document(
    index: int, seed: int, mean_length: int = DEFAULT_MEAN_LENGTH, facts: float = DEFAULT_FACTS
) -> str:
    """Article `index` of a seed.

    Args:
        index: from 0.
        seed: of the whole corpus.
        mean_length: characters, on average over many articles.
        facts: facts per 1,000 characters; each is restated one to three times. Where that makes
            more than there are kinds, an article has two or more facts, restated more often.
    """
    return _Writer(random.Random(f"{seed}/{index}"), mean_length, facts).article()


def restated_facts(text: str) -> list[tuple[Span, Span]]:
    """Names that a text states again: character spans of the first mention and of each later one.

    Works on any text that says "KINDは「NAME」" for the kinds of `sample_words.FACT_KINDS`.
    """
    first: dict[tuple[str, str], Span] = {}
    pairs = []
    for match in _FACT.finditer(text):
        key = (match[1], match[2])
        if key in first:
            pairs.append((first[key], match.span(2)))
        else:
            first[key] = match.span(2)
    return pairs


_LOOKED_AT = 2000  # characters of an article by which it is told
_LONGEST_VALUE = 60  # characters that fill a slot


def is_generated(text: str) -> bool:
    """Whether a text is one of these articles: a good part of it is sentences of the templates."""
    head = text[:_LOOKED_AT]
    said = sum(len(match[0]) for match in _sentences().finditer(head))
    return said > len(head) / 5


@functools.cache
def _sentences() -> re.Pattern[str]:
    """Any sentence of an article, told by what stands between its slots."""
    known = [*templates.GENERIC, *templates.FACT_FIRST, *templates.FACT_AGAIN]
    for _, _, openings, own in templates.KINDS.values():
        known += [*openings, *own]
    forms = []
    for template in known:
        parts = _parts_of(template)
        forms.append(
            "".join(
                re.escape(literal) + (f"[^。]{{1,{_LONGEST_VALUE}}}?" if slot else "")
                for literal, slot in parts
            )
        )
    return re.compile("|".join(forms))


@functools.cache
def _parts_of(template: str) -> tuple[tuple[str, str], ...]:
    """A template as pairs of literal text and the slot after it ("" for none)."""
    return tuple(
        (literal, slot or "") for literal, slot, _, _ in string.Formatter().parse(template)
    )


@dataclass(frozen=True)
class _Fact:
    kind: str
    name: str


class _Writer:
    """Writes one article with one random stream."""

    def __init__(self, rng: random.Random, mean_length: int, facts: float) -> None:
        self._random = rng.random
        # exp(N(mu, s^2)) has the mean exp(mu + s^2 / 2).
        length = math.exp(rng.gauss(math.log(mean_length) - _SPREAD**2 / 2, _SPREAD))
        self._target = int(min(max(length, MIN_LENGTH), MAX_LENGTH))
        self._written = 0
        self._kind = self._pick(tuple(templates.KINDS))
        suffixes, self._headings, self._openings, own = templates.KINDS[self._kind]
        self._sentences = own * 2 + templates.GENERIC
        self._slots = self._make_slots(self._pick(suffixes))
        self._plan_facts(int(self._target * facts / 1000))

    def article(self) -> str:
        """The article in Wiki40b's layout."""
        lead = self._fill(self._pick(self._openings)) + self._paragraph(2)
        sections = [Section("", (lead,))]
        headings = list(self._headings)
        while self._written < self._target:
            if not headings:
                headings = [f"{name}（{self._pick(words.FIELDS)}）" for name in self._headings]
            title = headings.pop(self._below(len(headings)))
            count = 1 + self._below(3)
            paragraphs: list[str] = []
            while len(paragraphs) < count and self._written < self._target:
                paragraphs.append(self._paragraph(2 + self._below(6)))
            sections.append(Section(title, tuple(paragraphs)))
        return render(str(self._slots["題"]), sections)

    def _paragraph(self, sentences: int) -> str:
        parts = []
        for _ in range(sentences):
            parts += self._due_facts()
            chance = self._random()
            if chance < 0.12:
                parts.append(self._fill(self._pick(templates.QUOTED)))
                continue
            if chance < 0.4:
                parts.append(self._fill(self._pick(templates.CONNECTIVES)))
            parts.append(self._fill(self._pick(self._sentences)))
        return "".join(parts)

    def _plan_facts(self, count: int) -> None:
        """When to state which fact: (characters written, tie-break, fact, whether again)."""
        kinds = self._shuffled(words.FACT_KINDS)[:count]
        if count > len(kinds):  # some articles are easy to keep in mind, some are hard
            kinds = kinds[: 2 + self._below(len(kinds) - 1)]
        more = 3 * (count - len(kinds)) // max(1, len(kinds))
        due: list[tuple[int, int, _Fact, bool]] = []
        for kind in kinds:
            fact = _Fact(kind, self._fact_name())
            at = int(self._random() * 0.6 * self._target)
            due.append((at, len(due), fact, False))
            for _ in range(1 + self._below(3) + more):
                room = self._target - at
                if room <= _MIN_DISTANCE:
                    break
                farthest = math.log(min(_MAX_DISTANCE, room) / _MIN_DISTANCE)
                distance = _MIN_DISTANCE * math.exp(self._random() * farthest)
                due.append((at + int(distance), len(due), fact, True))
        heapq.heapify(due)
        self._due = due

    def _due_facts(self) -> list[str]:
        said = []
        while self._due and self._due[0][0] <= self._written:
            _, _, fact, again = heapq.heappop(self._due)
            self._slots["種"], self._slots["名"] = fact.kind, fact.name
            said.append(
                self._fill(self._pick(templates.FACT_AGAIN if again else templates.FACT_FIRST))
            )
        return said

    def _fill(self, template: str) -> str:
        slots = self._slots
        parts = []
        for literal, slot in _parts_of(template):
            parts.append(literal)
            if slot:
                value = slots[slot]
                parts.append(value if isinstance(value, str) else value())
        text = "".join(parts)
        self._written += len(text)
        return text

    def _make_slots(self, suffix: str) -> dict[str, _Slot]:
        """What fills each slot: fixed for the article's cast, drawn anew for the rest."""
        pick = self._pick
        place = self._place()
        subject = place + suffix if suffix else self._person()
        return {
            "題": subject,
            "地": self._place(),
            "県": pick(words.PREFECTURES),
            "主": self._person(),
            "友": self._person(),
            "読": self._reading(),
            "人": self._person,
            "町": self._place,
            "年": self._era_year,
            "西暦": lambda: str(1700 + self._below(325)),
            "月日": lambda: f"{1 + self._below(12)}月{1 + self._below(28)}日",
            "数": lambda: str(2 + self._below(98)),
            "大数": self._large_number,
            "小数": self._decimal,
            "度": lambda: f"{1 + self._random() * 38:.1f}",
            "生没": self._life,
            "物": lambda: pick(words.THINGS),
            "形": lambda: pick(words.ADJECTIVES),
            "事": lambda: pick(words.EVENTS),
            "業": lambda: pick(words.FIELDS),
            "片": lambda: pick(words.KATAKANA),
            "英": lambda: pick(words.LATIN),
            "色": lambda: pick(words.COLOURS),
            "言": lambda: pick(words.SAYINGS),
            "叫": lambda: pick(words.EXCLAMATIONS),
            "書": lambda: pick(words.BOOKS),
        }

    def _shuffled(self, items: Sequence[str]) -> list[str]:
        return [item for _, item in sorted((self._random(), item) for item in items)]

    def _person(self) -> str:
        return (
            self._pick(words.SURNAME_HEADS)
            + self._pick(words.SURNAME_TAILS)
            + self._pick(words.GIVEN_NAMES)
        )

    def _place(self) -> str:
        return self._pick(words.PLACE_HEADS) + self._pick(words.PLACE_TAILS)

    def _fact_name(self) -> str:
        letters = 2 + self._below(2)
        return "".join(self._pick(words.FACT_LETTERS) for _ in range(letters))

    def _reading(self) -> str:
        return "".join(self._pick(words.KANA) for _ in range(3 + self._below(5)))

    def _era_year(self) -> str:
        name, first, years = self._pick(words.ERAS)
        n = self._below(years)
        return f"{name}{n + 1 if n else '元'}年（{first + n}年）"

    def _life(self) -> str:
        born = 1700 + self._below(230)
        return f"{born}年 - {born + 35 + self._below(60)}年"

    def _large_number(self) -> str:
        n = int(10 ** (3 + 5 * self._random()))
        if n < 10_000 or self._random() < 0.3:
            return f"{n:,}"
        return f"{n // 10_000}万{n % 10_000 or ''}"

    def _decimal(self) -> str:
        number = f"{self._random() * 100:.{1 + self._below(2)}f}"
        return number if self._random() < 0.9 else number.translate(_FULL_WIDTH)

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self._random() * len(choices))]

    def _below(self, n: int) -> int:
        return int(self._random() * n)


_FULL_WIDTH = str.maketrans("0123456789.", "０１２３４５６７８９．")
