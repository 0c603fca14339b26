"""Compare, store and draw the results of scripts/learn.py."""

import itertools
import json
import pathlib
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bigbird_ja.report import charts

Curve = Sequence[Sequence[float]]  # pairs (step, loss)
WIDTH = 25  # logged steps over which a drawn training loss is averaged


Losses = Mapping[int, float]  # final loss by seed


def differences(compared: Mapping[Any, tuple[Losses, Losses]]) -> dict[Any, str]:
    """Format each recipe's mean difference in loss from its base, with a confidence interval.

    The confidence of all intervals together is 95 % (Holm 1979). Among m differences, the one with
    the smallest p-value gets the confidence level 1 - 0.05 / m, and the next one gets
    1 - 0.05 / (m - 1). A difference from fewer than three seeds gets no interval and is not counted
    in m.

    Args:
        compared: the losses of a recipe and the losses of its base, by any key.
    """
    from scipy import stats

    pairs = {
        key: [ours[seed] - base[seed] for seed in ours if seed in base]
        for key, (ours, base) in compared.items()
    }
    words = {key: f"{statistics.mean(found):+.4f}" if found else "" for key, found in pairs.items()}
    tests = {k: stats.ttest_1samp(found, 0.0) for k, found in pairs.items() if len(found) > 2}
    # By Holm's method, all differences after the first insignificant one are insignificant, too.
    is_shown = True
    for rank, key in enumerate(sorted(tests, key=lambda k: float(tests[k].pvalue))):
        low, high = tests[key].confidence_interval(1 - 0.05 / (len(tests) - rank))
        is_shown = is_shown and not low <= 0 <= high
        verdict = (" better" if high < 0 else " worse") if is_shown else ""
        words[key] += f" ± {(high - low) / 2:.4f}{verdict}"
    return words


def steps_to(curve: Curve, loss: float) -> float | None:
    """Return the step at which a falling curve first reaches `loss`, or None if it never does.

    The curve is interpolated linearly between its points.
    """
    for (step, high), (later, low) in itertools.pairwise(curve):
        if low <= loss < high:
            return step + (later - step) * (high - loss) / (high - low)
    return None


def recipe_of(title: str) -> str:
    """Return the recipe's name from a run's title, such as "base, seed 1"."""
    return title.partition(", seed")[0]


def read_published(path: pathlib.Path, text: str | None, part: str = "runs") -> Any:
    """Read a part of the published results, such as the runs by title.

    Returns:
        The part, None if the results are from training on another text, or {} if there is no file.
    """
    if not path.exists():
        return {}
    made = json.loads(path.read_text("utf-8"))
    return dict(made.get(part, {})) if text in (None, made["text"]) else None


def publish(
    path: pathlib.Path, text: str, runs: Mapping[str, Any], counted: Mapping[str, float]
) -> None:
    """Write the results that the repository publishes, with one line for each run."""
    lines = ",\n".join(f"{json.dumps(title)}: {json.dumps(run)}" for title, run in runs.items())
    head = f'"text": {json.dumps(text)}, "counted": {json.dumps(counted)}'
    path.write_text(f'{{{head}, "runs": {{\n{lines}\n}}}}\n', "utf-8")


def draw(
    path: pathlib.Path, title: str, curves: Mapping[str, Curve], counted: Mapping[str, float]
) -> None:
    """Draw the loss of every run, with one color for each recipe.

    A long curve is smoothed by a running mean. Losses of predictions by n-gram counts are drawn as
    horizontal lines.
    """
    recipes = list(dict.fromkeys(map(recipe_of, curves)))
    # The height in inches includes the legend.
    figure = charts.make_figure(7, 4.3 + len(recipes) / 8)
    axes = figure.subplots()
    for name, points in curves.items():
        steps, losses = np.array(points, float).T
        number = recipes.index(recipe_of(name))
        width = WIDTH if len(losses) > 2 * WIDTH else 1
        axes.plot(
            steps[width - 1 :],
            np.convolve(losses, np.ones(width) / width, mode="valid"),
            color=f"C{number % 10}",
            lw=1.1,
            ls=("-", "--", "-", "--", ":")[(number + number // 10) % 5],
            label=recipes[number] if "seed 0" in name else None,
        )
    for number, (name, loss) in enumerate(counted.items()):
        axes.axhline(loss, color="0.3", lw=1, ls=("-.", "--", "-")[number % 3], label=name)
    axes.set(xlabel="step", ylabel="masked-LM loss")
    axes.set_title(textwrap.fill(title, 80), fontsize=10)
    axes.grid(alpha=0.3)
    charts.add_legend_below(figure)
    figure.savefig(path, dpi=110, metadata={"Software": ""})
