"""Does `rolled` learn as well as `independent`? `make bench-patterns` (about twenty minutes).

Two tasks on the generated corpus, several seeds, the same model but for its random connections:

- masked-LM loss, as in pretraining;
- far recall: pairs (key, value) are planted as single tokens among the corpus's, and queries for
  them at random places; the model names the value. The pairs outnumber the global tokens, so that
  a model with no random blocks (the control) cannot carry them all that way and must fail; a task
  which that model solves would show nothing.

Prints final losses and recall with their spread over seeds, each as a ratio against `independent`,
and draws docs/images/patterns.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator

from bigbird_ja import tensorflow_env

tensorflow_env.prepare(os.environ)

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from bigbird_ja import console  # noqa: E402
from bigbird_ja.config import Config  # noqa: E402
from bigbird_ja.train.step import eval_metrics  # noqa: E402
from scripts.learning import (  # noqa: E402
    Batch,
    config_for,
    generated_data,
    train,
    training_batches,
)

PATTERNS = {
    "independent": ["model.random_pattern=independent"],
    "rolled": ["model.random_pattern=rolled"],
    "no random blocks": ["model.random_pattern=independent", "model.num_random_blocks=0"],
}
KEYS, VALUES, QUERIES = 64, 16, 64
# A pair within the window of three blocks needs no random connection: those are told apart.
NEAR_BLOCKS = 2


def planted(batches: Iterator[Batch], first_id: int, seed: int) -> Iterator[Batch]:
    """Corpus batches with pairs and queries in place of the masked-LM task.

    Token `first_id + key * VALUES + value` states a pair, `first_id + KEYS * VALUES + key` asks
    for a key, and the answer is the id `value + 16` (an ordinary piece). [CLS] stays where it is.
    """
    random = np.random.default_rng(seed)
    for batch in batches:
        ids = batch["input_ids"].copy()
        rows, length = ids.shape
        positions = np.stack(
            [random.permutation(np.arange(1, length))[: KEYS + QUERIES] for _ in range(rows)]
        )
        values = random.integers(0, VALUES, (rows, KEYS))
        asked = random.integers(0, KEYS, (rows, QUERIES))
        row = np.arange(rows)[:, None]
        ids[row, positions[:, :KEYS]] = first_id + np.arange(KEYS) * VALUES + values
        ids[row, positions[:, KEYS:]] = first_id + KEYS * VALUES + asked
        yield {
            **batch,
            "input_ids": ids.astype(np.int32),
            "masked_lm_positions": positions[:, KEYS:].astype(np.int32),
            "masked_lm_ids": (np.take_along_axis(values, asked, 1) + 16).astype(np.int32),
            "masked_lm_weights": np.ones((rows, QUERIES), np.float32),
            "distance": np.abs(positions[:, KEYS:] - np.take_along_axis(positions, asked, 1)),
        }


def train_masked_lm(config: Config, data_dir: str) -> list[float]:
    """The loss at each step."""
    losses: list[float] = []
    train(config, training_batches(config, data_dir), lambda _, m: losses.append(m["loss"]))
    return losses


def train_recall(config: Config, data_dir: str, vocab_size: int) -> tuple[list[float], float]:
    """The accuracy at each step, and the final accuracy on far pairs of fresh sequences."""
    batches = planted(training_batches(config, data_dir), vocab_size, seed=config.training.seed)
    curve: list[float] = []

    def without_distance() -> Iterator[Batch]:
        for batch in batches:
            yield {name: value for name, value in batch.items() if name != "distance"}

    params = train(config, without_distance(), lambda _, m: curve.append(m["masked_lm_accuracy"]))
    hits = far = 0
    for _ in range(20):
        batch = next(batches)
        is_far = batch.pop("distance") >= NEAR_BLOCKS * config.model.block_size
        correct = eval_metrics(config, params, {n: tf.constant(v) for n, v in batch.items()})
        hits += int((correct["masked_lm_correct"].numpy() * is_far).sum())
        far += int(is_far.sum())
    return curve, hits / far


def smooth(values: list[float], width: int = 25) -> np.ndarray:
    """Running mean."""
    return np.convolve(values, np.ones(width) / width, mode="valid")


def draw(path: str, losses: dict[str, list], curves: dict[str, list]) -> None:
    """Both tasks' curves, one line per seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for color, name in zip(("tab:blue", "tab:orange", "tab:gray"), PATTERNS, strict=True):
        for axes, runs in ((left, losses[name]), (right, curves[name])):
            for index, run in enumerate(runs):
                axes.plot(smooth(run), color=color, lw=1.2, label=None if index else name)
    left.set(title="masked-LM loss, generated corpus", xlabel="step", ylabel="loss")
    right.set(title=f"far recall, {KEYS} planted pairs", xlabel="step", ylabel="accuracy")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Trains all, prints the table, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work_dir", default="out/patterns")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of masked-LM training")
    parser.add_argument("--recall_steps", type=int, default=1500)
    parser.add_argument("--plot", default="docs/images/patterns.png")
    options = parser.parse_args()
    data_dir = generated_data(options.work_dir)
    vocab_size = config_for(data_dir).model.vocab_size or 0
    losses: dict[str, list] = {name: [] for name in PATTERNS}
    curves: dict[str, list] = {name: [] for name in PATTERNS}
    recalls: dict[str, list[float]] = {name: [] for name in PATTERNS}
    for seed in range(options.seeds):
        for name, sets in PATTERNS.items():
            common = [*sets, f"training.seed={seed}", f"model.pattern_seed={seed}"]
            config = config_for(data_dir, *common, f"training.num_train_steps={options.steps}")
            losses[name].append(train_masked_lm(config, data_dir))
            config = config_for(
                data_dir,
                *common,
                f"training.num_train_steps={options.recall_steps}",
                "model.num_attention_heads=4",
                "model.hidden_dropout_prob=0.0",
                "training.learning_rate=3e-3",
            )
            config.model.vocab_size = vocab_size + KEYS * VALUES + KEYS
            curve, recall = train_recall(config, data_dir, vocab_size)
            curves[name].append(curve)
            recalls[name].append(recall)
            final = float(np.mean(losses[name][-1][-50:]))
            console.log(f"seed {seed}  {name}: loss {final:.4f}, far recall {recall:.1%}")
    report(losses, recalls)
    draw(options.plot, losses, curves)
    print(f"drawn: {options.plot}")


def report(losses: dict[str, list], recalls: dict[str, list[float]]) -> None:
    """The table, and whether the task tells the patterns apart."""
    final = {name: [float(np.mean(run[-50:])) for run in runs] for name, runs in losses.items()}
    base_loss, base_recall = (statistics.mean(x["independent"]) for x in (final, recalls))
    rows = [
        (
            name,
            f"{statistics.mean(final[name]):.4f} ± {statistics.pstdev(final[name]):.4f}",
            f"{statistics.mean(final[name]) / base_loss:.3f} x",
            f"{statistics.mean(recalls[name]):.1%} ± {statistics.pstdev(recalls[name]):.1%}",
            f"{statistics.mean(recalls[name]) / base_recall:.2f} x",
        )
        for name in PATTERNS
    ]
    print(console.table(rows, ("pattern", "masked-LM loss", "ratio", "far recall", "ratio")))
    print(json.dumps({"losses": final, "recalls": recalls, "chance": 1 / VALUES}))


if __name__ == "__main__":
    sys.exit(main())
