"""Measure whether a model uses its long context, by masking names that occur twice.

    python -m scripts.probe --model_dir DIR --input TEXT.jsonl [--plot PNG]

TEXT comes from `bigbird-ja sample`, whose articles mention names repeatedly. All later mentions of
a masked name are masked, too, so that only earlier mentions help. Three predictions are compared:
the model with the whole sequence, the same model with 512 tokens of context, and the best constant
guess. `make probe` trains a model for this experiment (docs/lab/long-context.md). Prints a table
and a line of JSON.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bigbird_ja.data import manifest
from bigbird_ja.evaluation import masked_lm
from bigbird_ja.evaluation.checkpoints import name_row
from bigbird_ja.model.forward import Forward
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model.params import POSITIONS
from bigbird_ja.model_dir.model import load_run
from bigbird_ja.model_dir.variables import write_variables
from bigbird_ja.process import console
from bigbird_ja.report import charts
from bigbird_ja.settings.resolve import base_layers, fit_to_data, resolve_config
from bigbird_ja.text.articles import WORDS
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.text.tokenizer import Tokenizer

WINDOW = 512  # tokens that the limited model sees
TAIL = 32  # tokens after the masked name that the limited model sees
FIRST_EDGE = 64  # upper end of the first range of distances, in tokens
GUESSES = {
    "model": ("whole sequence", "#1f6feb", "o-"),
    "window": (f"same weights, {WINDOW} tokens", "#d1242f", "s--"),
    "unigram": ("best constant guess", "#6e7781", "^:"),
}
# Constants of `write_initial_weights`. Each head of the first layer attends to one of the relative
# positions DISTANCES. The attention score of the key at that position is PEAK.
DISTANCES, PEAK = (-1, 1, -4, 4, -2, 2, -8, 8), 10.0

_FACT = re.compile(f"({'|'.join(WORDS['fact_kinds'])})は「([^「」]+)」")
# Start and end of a mention, in characters or tokens. The end is exclusive.
Mention = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """One masked name.

    Attributes:
        input_ids: int32 [seq_length], token ids. The name and its later mentions are masked.
        positions: int32 [name_length], positions of the name's tokens.
        ids: int32 [name_length], true token ids of the name.
        distance: number of tokens back to the previous mention.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    distance: int


def sequences(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> Iterator[np.ndarray]:
    """Cut documents into padded sequences `[CLS] ... [SEP]`, each int32 [length]."""
    special, room = tokenizer.special, length - 2
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), room):
            yield framed(ids[start : start + room], special, length)


def framed(ids: Iterable[int], special: Any, length: int) -> np.ndarray:
    """Return token ids between `[CLS]` and `[SEP]`, padded to int32 [length]."""
    written = np.array([special.cls, *ids, special.sep], np.int32)
    return np.pad(written, (0, length - len(written)), constant_values=special.pad)


def neighboring_mentions(text: str) -> list[tuple[Mention, Mention]]:
    """Return pairs of successive mentions of the same fact, as ranges of characters."""
    mentions: dict[str, list[Mention]] = defaultdict(list)
    for match in _FACT.finditer(text):
        mentions[match[0]].append(match.span(2))
    return [pair for spans in mentions.values() for pair in pairwise(spans)]


def find_cases(records: Iterable[np.ndarray], tokenizer: Tokenizer) -> list[Case]:
    """Build a case from each mention that repeats a fact of its record.

    The mention must have the same tokens as the preceding mention of this fact.

    Args:
        records: padded sequences without masks, each int32 [seq_length].
        tokenizer: the model's tokenizer.
    """
    cases = []
    for record in records:
        # Replace special and unknown tokens by a character that no name contains.
        row = [tokenizer.written[i] if tokenizer.is_text_token[i] else "\n" for i in record]
        text, starts = "".join(row), np.concatenate([[0], np.cumsum([len(token) for token in row])])

        def tokens(mention: Mention, starts: np.ndarray = starts) -> Mention:
            first = int(np.searchsorted(starts, mention[0], side="right")) - 1
            return first, int(np.searchsorted(starts, mention[1], side="left"))

        pairs = neighboring_mentions(text)
        for earlier, later in pairs:
            first, target = tokens(earlier), tokens(later)
            if not np.array_equal(record[slice(*first)], record[slice(*target)]):
                continue
            name, masked = text[slice(*later)], record.copy()
            for _, other in pairs:
                if other >= later and text[slice(*other)] == name:
                    masked[slice(*tokens(other))] = tokenizer.special.mask
            positions = np.arange(*target, dtype=np.int32)
            cases.append(Case(masked, positions, record[positions], target[0] - first[0]))
    return cases


def limit(case: Case, special: Any) -> Case:
    """Cut a case to `WINDOW` tokens, which include `[CLS]` and `[SEP]`."""
    used = int(np.count_nonzero(case.input_ids != special.pad))
    # The last token, at `used - 1`, is [SEP].
    end = min(used - 1, int(case.positions[-1]) + 1 + TAIL)
    window = min(WINDOW, len(case.input_ids))
    start = max(1, end - window + 2)
    row = framed(case.input_ids[start:end], special, window)
    return Case(row, case.positions - start + 1, case.ids, case.distance)


def predict(model: Any, cases: Sequence[Case], batch_size: int) -> list[np.ndarray]:
    """Return the predicted token ids of each case, int [k] for its k positions."""
    width = max(len(case.positions) for case in cases)
    guesses: list[np.ndarray] = []
    for start in range(0, len(cases), batch_size):
        batch = cases[start : start + batch_size]
        # All batches have the same shape, so that the model is traced only once.
        rows = [*batch, *[batch[-1]] * (batch_size - len(batch))]
        positions = np.stack([np.resize(case.positions, width) for case in rows])
        scores = model.compute_log_probabilities(
            np.stack([case.input_ids for case in rows]), positions
        )
        best = scores.argmax(axis=-1)
        guesses += [best[i, : len(case.positions)] for i, case in enumerate(batch)]
    return guesses


def constant_guess(cases: Sequence[Case]) -> list[np.ndarray]:
    """Guess the most frequent token at each position in a name.

    This is the best possible guess without context.
    """
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for case in cases:
        for place, token_id in enumerate(case.ids.tolist()):
            counts[place][token_id] += 1
    best = [counts[place].most_common(1)[0][0] for place in sorted(counts)]
    return [np.array(best[: len(case.ids)]) for case in cases]


def measure(
    model: Any, tokenizer: Tokenizer, cases: Sequence[Case], batch_size: int
) -> list[dict[str, Any]]:
    """Return the fraction of tokens that each method predicts correctly, by distance."""
    guesses = {
        "model": predict(model, cases, batch_size),
        "window": predict(model, [limit(case, tokenizer.special) for case in cases], batch_size),
        "unigram": constant_guess(cases),
    }
    shares = {
        name: np.array([(g == c.ids).mean() for g, c in zip(guessed, cases, strict=True)])
        for name, guessed in guesses.items()
    }
    distances = np.array([case.distance for case in cases])
    edges = masked_lm.make_distance_edges(len(cases[0].input_ids), FIRST_EDGE)
    return masked_lm.compute_bucket_means(edges, distances, shares)


def draw(rows: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the accuracy against the distance, and write a PNG file."""
    figure = charts.make_figure(7.5, 4.5)
    axes = figure.add_subplot()
    for key, (label, color, style) in GUESSES.items():
        axes.plot([100 * row[key] for row in rows], style, color=color, label=label, linewidth=2)
    labels = [f"{name_row(row)}\nn={row['count']}" for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.set(ylim=(-2, 102), ylabel="masked tokens of the name filled in (%)")
    axes.set_xlabel("distance to the nearest earlier mention (tokens)")
    axes.grid(alpha=0.3)
    charts.add_legend_below(figure)
    figure.savefig(path, dpi=130)


def write_initial_weights(config_path: str, data_dir: str, prefix: str) -> None:
    """Write initial weights with which a small BigBird learns to copy.

    The weights follow Trockman and Kolter 2023 (arXiv:2305.09828). Position embeddings are sines
    and cosines, so a rotation shifts them by a distance. In each head of the first layer, the query
    kernel is the rotated key kernel, so the head attends to tokens at one distance. In later
    layers, the query and key kernels are equal, so these layers attend to similar tokens. The
    output kernel of a later layer inverts its value kernel, so the layer copies the tokens to which
    it attends.
    """
    config, overrides = resolve_config(base_layers(config_path))
    data = manifest.load(data_dir)
    config = fit_to_data(config, data, overrides)
    model, seed = config.model, config.training.seed
    size, columns = model.hidden_size, model.hidden_size // model.num_attention_heads
    count = model.max_position_embeddings or 0
    # Frequencies in radians per token. The wavelengths are from 2 pi to `count` tokens.
    rates = np.geomspace(1.0, 2 * np.pi / max(count, 8), size // 2)
    angles = np.arange(count)[:, None] * rates
    random = np.random.Generator(np.random.PCG64(seed))
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    values = {POSITIONS: np.sqrt(2) * model.initializer_range * waves}
    # Position embeddings are half of the variance of a layer's normalized input. The attention
    # score of equal positions is therefore sqrt(size per head) x deviation^2 x size / 2. Choose
    # `deviation` so that this score is PEAK.
    deviation = np.sqrt(2 * PEAK / (size * np.sqrt(columns)))
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}/attention"
        key = query = deviation * random.standard_normal((size, size))
        if layer == 0:
            query = key.copy()
            for head in range(model.num_attention_heads):
                turns = rates * DISTANCES[head % len(DISTANCES)]
                sine, cosine = np.diag(np.sin(turns)), np.diag(np.cos(turns))
                own = slice(head * columns, (head + 1) * columns)
                query[:, own] = np.block([[cosine, -sine], [sine, cosine]]) @ key[:, own]
        else:
            basis = np.linalg.qr(random.standard_normal((size, size)))[0]
            values[f"{scope}/self/value/kernel"] = basis
            values[f"{scope}/output/dense/kernel"] = basis.T
        values |= {f"{scope}/self/key/kernel": key, f"{scope}/self/query/kernel": query}
    first = draw_parameters(config, data, seed)
    write_variables(prefix, first | {n: v.astype(np.float32) for n, v in values.items()})


def main() -> None:
    """Print the accuracies of a model, and draw them with --plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--input", required=True, action="append", help="a SRC as for make-data")
    parser.add_argument("--cases", type=int, default=2000, help="maximum number of names to mask")
    parser.add_argument("--plot", help="PNG file")
    options = parser.parse_args()
    model = load_run(options.model_dir)
    length = model.config.model.max_position_embeddings or WINDOW
    records = sequences(open_corpus(options.input).texts(), model.tokenizer, length)
    cases = find_cases(records, model.tokenizer)
    if not cases:
        raise SystemExit("--input: no restated name. Give text that `bigbird-ja sample` wrote")
    chosen = np.random.Generator(np.random.PCG64(0)).permutation(len(cases))[: options.cases]
    cases = [cases[i] for i in sorted(chosen)]
    forward = Forward(model.config, model.data, model.params)
    rows = measure(forward, model.tokenizer, cases, masked_lm.choose_batch_size(length))
    cells = [(name_row(row), row["count"], *(100 * row[key] for key in GUESSES)) for row in rows]
    titles = ["tokens back", "names", *(f"{label} %" for label, _, _ in GUESSES.values())]
    print(console.table(cells, titles))
    if options.plot:
        draw(rows, options.plot)
    print(json.dumps({"cases": len(cases), "by_distance": rows}))


if __name__ == "__main__":
    main()
