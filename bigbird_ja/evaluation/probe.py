"""Does the long context help? Names stated again far later are masked there: are they filled in?

Three guesses at each masked name: the model's with the whole sequence, the same weights' with 512
tokens of context, and the best constant guess (unigram). All read the same held-out records; every
mention after the masked one is masked too, so that only earlier ones help.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja.evaluation.masked_lm import bucket_means, distance_edges, percent, row_name
from bigbird_ja.process.console import Progress, table
from bigbird_ja.storage import plotting

if TYPE_CHECKING:
    from bigbird_ja.evaluation.forward import Forward
    from bigbird_ja.text.interface import Tokenizer

WINDOW = 512  # tokens that the limited model sees
_TAIL = 32  # tokens after the masked name that the window keeps
_FIRST_EDGE = 64  # of the distance buckets

Span = tuple[int, int]
# Katakana words and kanji compounds: what names look like in running Japanese text.
_NAME = re.compile(r"[ァ-ヴー]{4,12}|[一-龥々]{3,8}")
_MOST_MENTIONS = 8


@dataclass(frozen=True)
class Case:
    """One name to fill in."""

    record: int
    input_ids: np.ndarray  # int32 [S], the name and its later mentions masked
    positions: np.ndarray  # int32 [k], the name's tokens
    ids: np.ndarray  # int32 [k], the name's true pieces
    distance: int  # tokens back to the nearest earlier mention


def records_as_ids(batches: Iterable[Any], pad_id: int) -> Iterator[np.ndarray]:
    """The unmasked token ids of evaluation records: int32 [S] each, fillers left out."""
    for batch in batches:
        ids = batch["input_ids"].numpy().copy()
        rows, columns = np.nonzero(batch["masked_lm_weights"].numpy() > 0)
        places = batch["masked_lm_positions"].numpy()[rows, columns]
        ids[rows, places] = batch["masked_lm_ids"].numpy()[rows, columns]
        yield from (row for row in ids if row[0] != pad_id)


def documents_as_ids(
    texts: Iterable[str], tokenizer: Tokenizer, seq_length: int
) -> Iterator[np.ndarray]:
    """Documents cut into sequences `[CLS] ... [SEP]`: int32 [S] each, padded."""
    special = tokenizer.special
    room = seq_length - 2
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), room):
            row = np.full(seq_length, special.pad, np.int32)
            written = [special.cls, *ids[start : start + room], special.sep]
            row[: len(written)] = written
            yield row


def generated_names(texts: Sequence[str]) -> list[list[tuple[Span, Span]]]:
    """The restated facts of the generated corpus: per text, pairs of neighbouring mentions."""
    from bigbird_ja.text import articles

    pairs = []
    for text in texts:
        mentions: dict[Span, list[Span]] = defaultdict(list)
        for first, later in articles.restated_facts(text):
            mentions[first].append(later)
        pairs.append(
            [pair for first, later in mentions.items() for pair in pairwise([first, *later])]
        )
    return pairs


def repeated_names(texts: Sequence[str]) -> list[list[tuple[Span, Span]]]:
    """Rare names of any text: in one of the texts only, and there two to eight times."""
    mentions: list[dict[str, list[Span]]] = []
    in_texts: Counter[str] = Counter()
    for text in texts:
        spans_of: dict[str, list[Span]] = defaultdict(list)
        for match in _NAME.finditer(text):
            spans_of[match.group()].append(match.span())
        mentions.append(spans_of)
        in_texts.update(spans_of.keys())
    return [
        [
            pair
            for name, spans in spans_of.items()
            if in_texts[name] == 1 and 2 <= len(spans) <= _MOST_MENTIONS
            for pair in pairwise(spans)
        ]
        for spans_of in mentions
    ]


def find_cases(
    records: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    find_names: Callable[[Sequence[str]], list[list[tuple[Span, Span]]]],
) -> list[Case]:
    """Every second and later mention of a name, as something to fill in.

    Args:
        records: int32 [S] each, unmasked, padded.
        tokenizer: of the data.
        find_names: character spans of (earlier, later) mentions in each of some texts.
    """
    texts, offsets = zip(*(_surface(record, tokenizer) for record in records), strict=True)
    cases = []
    for number, pairs in enumerate(find_names(texts)):
        text, starts = texts[number], offsets[number]
        later_by_name: dict[str, list[Span]] = defaultdict(list)
        for _, later in pairs:
            later_by_name[text[slice(*later)]].append(later)
        for earlier, later in pairs:
            hidden = [s for s in later_by_name[text[slice(*later)]] if s >= later]
            case = _case(number, records[number], starts, earlier, later, hidden, tokenizer)
            if case is not None:
                cases.append(case)
    return cases


def _surface(record: np.ndarray, tokenizer: Tokenizer) -> tuple[str, np.ndarray]:
    """The text that a record's pieces write, and where each token starts in it: int64 [S + 1]."""
    pieces = tokenizer.written
    is_text = tokenizer.is_text_piece
    # Special pieces and unknown ones become one character that no name contains.
    written = [pieces[i] if is_text[i] else "\n" for i in record]
    lengths = np.array([len(piece) for piece in written], np.int64)
    return "".join(written), np.concatenate([[0], np.cumsum(lengths)])


def _case(
    number: int,
    record: np.ndarray,
    starts: np.ndarray,
    earlier: Span,
    later: Span,
    hidden: Sequence[Span],
    tokenizer: Tokenizer,
) -> Case | None:
    """A case, or None where the two mentions are not written with the same pieces."""
    first, target = _tokens(starts, earlier), _tokens(starts, later)
    if not np.array_equal(record[slice(*first)], record[slice(*target)]):
        return None
    masked = record.copy()
    for span in hidden:
        masked[slice(*_tokens(starts, span))] = tokenizer.special.mask
    positions = np.arange(*target, dtype=np.int32)
    return Case(number, masked, positions, record[positions], target[0] - first[0])


def _tokens(starts: np.ndarray, span: Span) -> Span:
    """The tokens that a span of characters touches."""
    first = int(np.searchsorted(starts, span[0], side="right")) - 1
    return first, int(np.searchsorted(starts, span[1], side="left"))


def limit(case: Case, special: Any, window: int = WINDOW) -> Case:
    """The same case with `window` tokens of context, `[CLS]` and `[SEP]` included."""
    used = int(np.count_nonzero(case.input_ids != special.pad))
    room = window - 2
    end = min(used - 1, int(case.positions[-1]) + 1 + _TAIL)  # the last token is [SEP]
    start = max(1, end - room)
    row = np.full(window, special.pad, np.int32)
    row[: end - start + 2] = [special.cls, *case.input_ids[start:end], special.sep]
    return Case(case.record, row, case.positions - start + 1, case.ids, case.distance)


def predict(forward: Forward, cases: Sequence[Case], batch_size: int) -> list[np.ndarray]:
    """The best-scored piece at each position of each case: int [k] per case."""
    width = max((len(case.positions) for case in cases), default=0)
    guesses: list[np.ndarray] = []
    with Progress(len(cases), "names") as progress:
        for start in range(0, len(cases), batch_size):
            batch = list(cases[start : start + batch_size])
            rows = batch + [batch[-1]] * (batch_size - len(batch))  # one shape, one trace
            positions = np.stack([np.resize(case.positions, width) for case in rows])
            scores = forward.log_probabilities(np.stack([c.input_ids for c in rows]), positions)
            best = scores.argmax(axis=-1)
            guesses += [best[i, : len(case.positions)] for i, case in enumerate(batch)]
            progress.update(len(batch))
    return guesses


def constant_guess(cases: Sequence[Case]) -> list[np.ndarray]:
    """What a guess without context gives: at place i of a name, the commonest piece there.

    Counted over the cases themselves, so no guess without context can do better.
    """
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for case in cases:
        for place, piece in enumerate(case.ids.tolist()):
            counts[place][piece] += 1
    return [
        np.array([counts[place].most_common(1)[0][0] for place in range(len(case.ids))])
        for case in cases
    ]


def run(
    forward: Forward,
    tokenizer: Tokenizer,
    records: Sequence[np.ndarray],
    find_names: Callable[[Sequence[str]], list[list[tuple[Span, Span]]]],
    max_cases: int = 2000,
    batch_size: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """The probe on some records.

    Returns:
        `cases`, `window`, `by_distance`: buckets with `count` and, for `model`, `window` and
        `unigram`, the share of names filled in whole (`..._names`) and of their tokens; and the
        same over all cases in `overall`.
    """
    cases = find_cases(records, tokenizer, find_names) if records else []
    if len(cases) > max_cases:  # a fair sample, the same for every model
        chosen = np.random.Generator(np.random.PCG64(seed)).permutation(len(cases))[:max_cases]
        cases = [cases[i] for i in sorted(chosen)]
    window = min(WINDOW, forward.config.model.max_position_embeddings or WINDOW)
    limited = [limit(case, tokenizer.special, window) for case in cases]
    guesses = {
        "model": predict(forward, cases, batch_size),
        "window": predict(forward, limited, batch_size),
        "unigram": constant_guess(cases),
    }
    return {"cases": len(cases), "window_tokens": window, **_summarise(cases, guesses)}


def _summarise(cases: Sequence[Case], guesses: dict[str, list[np.ndarray]]) -> dict[str, Any]:
    columns: dict[str, np.ndarray] = {}
    for name, guessed in guesses.items():
        right = [guess == case.ids for guess, case in zip(guessed, cases, strict=True)]
        columns[name] = np.array([r.mean() for r in right])
        columns[f"{name}_names"] = np.array([float(r.all()) for r in right])
    longest = max((len(case.input_ids) for case in cases), default=_FIRST_EDGE)
    distances = np.array([case.distance for case in cases], np.int64)
    return {
        "by_distance": bucket_means(distance_edges(longest, _FIRST_EDGE), distances, columns),
        "overall": {k: float(v.mean()) if len(v) else None for k, v in columns.items()},
    }


def as_text(probe: Mapping[str, Any]) -> str:
    """A table of the results of `run`: the share of the names' tokens that each guess gets right,
    in per cent."""
    columns = ("model", "window", "unigram", "model_names")
    rows = [
        (row_name(row), row["count"], *(percent(row[key]) for key in columns))
        for row in probe["by_distance"]
    ]
    window = f"{probe['window_tokens']} tokens %"
    header = ["tokens back", "names", "model %", window, "constant %", "model, whole names %"]
    return f"\nprobe: {probe['cases']:,} masked names\n" + table(rows, header)


def draw(probe: Mapping[str, Any], path: str, title: str) -> None:
    """Draws the results of `run`, accuracy against distance, as a PNG file, on disk or gs://."""
    rows = probe["by_distance"]
    figure = plotting.new_figure(7.5, 4.5)
    axes = figure.add_subplot()
    for key, label, colour, style in (
        ("model", "whole sequence", "#1f6feb", "o-"),
        ("window", f"same weights, {probe['window_tokens']} tokens", "#d1242f", "s--"),
        ("unigram", "best constant guess", "#6e7781", "^:"),
    ):
        values = [100.0 * row[key] for row in rows]
        axes.plot(range(len(rows)), values, style, color=colour, label=label, linewidth=2)
    labels = [f"{row_name(row)}\nn={row['count']}" for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("distance to the nearest earlier mention (tokens)")
    axes.set_ylabel("masked tokens of the name filled in (%)")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    plotting.legend_below(figure)
    plotting.save(figure, path, dpi=130)
