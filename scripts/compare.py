"""Compares, keeps and draws what scripts/learn.py trained: differences, counted losses, curves."""

import itertools
import json
import pathlib
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bigbird_ja.report import charts

Curve = Sequence[Sequence[float]]  # (step, loss)
WIDTH = 25  # logged steps that a drawn training loss is averaged over
DISCOUNT = 0.75  # of a counted pair, for the pairs never seen


def difference(ours: Mapping[int, float], base: Mapping[int, float]) -> str:
    """Write the mean difference of the same seeds with its 95 % confidence interval."""
    from scipy import stats

    pairs = [ours[seed] - base[seed] for seed in ours if seed in base]
    mean = statistics.mean(pairs) if pairs else float("nan")
    if len(pairs) < 2:
        return f"{mean:+.4f}"
    low, high = stats.ttest_1samp(pairs, 0.0).confidence_interval(0.95)
    verdict = " better" if high < 0 else " worse" if low > 0 else ""
    return f"{mean:+.4f} ± {(high - low) / 2:.4f}{verdict}"


def steps_to(curve: Curve, loss: float) -> float | None:
    """Find where a falling curve first reaches a loss, on lines between its points, or None."""
    for (step, high), (later, low) in itertools.pairwise(curve):
        if low <= loss < high:
            return step + (later - step) * (high - loss) / (high - low)
    return None


def counted_losses(data_dir: str) -> dict[str, float]:
    """Compute `ngram_losses` of a data set with dynamic masks."""
    import tensorflow as tf

    from bigbird_ja.data import manifest, tfrecords

    made = manifest.load(data_dir)
    tokens = []
    for shards in (made.train_shards, made.eval_shards):
        files = [f"{data_dir}/{shard.name}" for shard in shards]
        batches = tf.data.TFRecordDataset(files).batch(1024)
        parsed = [tfrecords.parse_dynamic(made, batch)["tokens"].numpy() for batch in batches]
        tokens.append(np.concatenate(parsed).astype(np.int64))
    return ngram_losses(tokens[0], tokens[1], made.vocab_size, [*made.special_ids.values()])


def ngram_losses(
    train: np.ndarray, held_out: np.ndarray, vocab_size: int, special: Sequence[int]
) -> dict[str, float]:
    """Compute the held-out loss of counting, nats per ordinary piece; ids are [N, S] each.

    unigram: add-one counts. bigram: given the piece before, by absolute discounting (Ney, Essen
    and Kneser 1994) with the unigram behind it.
    """
    counts = 1 + np.bincount(train[~np.isin(train, special)], minlength=vocab_size)
    unigram = counts / counts.sum()
    codes = (train[:, :-1] * vocab_size + train[:, 1:]).ravel()
    pairs = np.bincount(codes, minlength=vocab_size**2).reshape(vocab_size, vocab_size)
    ordinary = ~np.isin(held_out[:, 1:], special)
    before, after = held_out[:, :-1][ordinary], held_out[:, 1:][ordinary]
    seen, total, kinds = pairs[before, after], pairs.sum(1)[before], (pairs > 0).sum(1)[before]
    left = np.where(total > 0, DISCOUNT * kinds / np.maximum(total, 1), 1)
    bigram = np.maximum(seen - DISCOUNT, 0) / np.maximum(total, 1) + left * unigram[after]
    likely = {"unigram": unigram[after], "bigram": bigram}
    return {name: float(-np.log(values).mean()) for name, values in likely.items()}


def recipe_of(title: str) -> str:
    """Return the recipe of a run's title."""
    return title.partition(", seed")[0]


def read_published(path: pathlib.Path, text: str | None) -> dict[str, Any] | None:
    """Read the repository's results by the run's title; None if they are of another text."""
    if not path.exists():
        return {}
    made = json.loads(path.read_text("utf-8"))
    return dict(made["runs"]) if text in (None, made["text"]) else None


def publish(path: pathlib.Path, text: str, runs: Mapping[str, Any]) -> None:
    """Writes results for the repository, a line for each run."""
    lines = ",\n".join(f"{json.dumps(title)}: {json.dumps(run)}" for title, run in runs.items())
    path.write_text(f'{{"text": {json.dumps(text)}, "runs": {{\n{lines}\n}}}}\n', "utf-8")


def draw(path: pathlib.Path, title: str, curves: Mapping[str, Curve]) -> None:
    """Draw every run's loss, one colour for each recipe; many logged losses as a running mean."""
    figure = charts.new_figure(7, 5)
    axes = figure.subplots()
    recipes = list(dict.fromkeys(map(recipe_of, curves)))
    for name, points in curves.items():
        steps, losses = np.array(points, float).T
        number = recipes.index(recipe_of(name))
        width = WIDTH if len(losses) > 2 * WIDTH else 1
        axes.plot(
            steps[width - 1 :],
            np.convolve(losses, np.ones(width) / width, mode="valid"),
            color=f"C{number % 10}",
            lw=1.1,
            ls=("-", "--", ":")[number // 10 % 3],
            label=recipes[number] if "seed 0" in name else None,
        )
    axes.set(xlabel="step", ylabel="masked-LM loss")
    axes.set_title(textwrap.fill(title, 80), fontsize=10)
    axes.grid(alpha=0.3)
    charts.legend_below(figure)
    figure.savefig(path, dpi=110, metadata={"Software": ""})
