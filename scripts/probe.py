"""`make probe`: trains configs/probe-cpu.yaml and draws what the long context is worth.

sample -> tokenize -> make-data -> pretrain -> evaluate --probe -> docs/images/probe.png, each one
of the commands, run as you would run it; running it again continues. Twenty minutes on two cores.
The names to fill in stand in articles of their own, with few facts, so that many of them were last
stated far away.
The outcome goes to OUT/outcome.json: accuracy by distance, the time training took, the settings.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The corpus: two sequences an article on average, two to sixteen facts stated again and again.
DOCUMENTS, MEAN_LENGTH, FACTS = 4000, 5000, 20.0
ASKED_DOCUMENTS, ASKED_FACTS, ASKED_SEED = 600, 3.0, 99
# Beyond this a window of 512 tokens sees no earlier mention.
FAR = 512


def main() -> int:
    """Runs every step and prints the outcome; the exit status is 0 if the effect is clear."""
    options = _options()
    out = options.work_dir
    corpus, prefix, data = f"{out}/corpus.jsonl", f"{out}/ja", f"{out}/data"
    asked = f"{out}/asked.jsonl"
    common = ["--config", options.config, *(f"--set={item}" for item in options.set)]
    model_dir = f"{out}/model"
    os.makedirs(out, exist_ok=True)
    _command(
        "sample", "--output", corpus, f"--documents={options.documents}",
        f"--mean_length={MEAN_LENGTH}", f"--facts_per_1000_characters={FACTS}",
    )  # fmt: skip
    _command(
        "sample", "--output", asked, f"--documents={ASKED_DOCUMENTS}", f"--seed={ASKED_SEED}",
        f"--mean_length={MEAN_LENGTH}", f"--facts_per_1000_characters={ASKED_FACTS}",
    )  # fmt: skip
    _command("tokenize", *common, "--input", corpus, "--output_prefix", prefix)
    _command(
        "make-data", *common, "--input", corpus, "--tokenizer", f"{prefix}.model",
        "--output_dir", data,
    )  # fmt: skip
    start = time.monotonic()
    trained = _command("pretrain", *common, "--data_dir", data, "--model_dir", model_dir)
    seconds = time.monotonic() - start
    found = _command(
        "evaluate", "--model_dir", model_dir, "--data_dir", data, "--max_batches=20", "--probe",
        "--probe_input", asked, f"--probe_cases={options.cases}", f"--plot={options.plot}",
    )  # fmt: skip
    outcome = {
        "train_minutes": round(seconds / 60, 1),
        "global_step": trained["global_step"],
        "loss": trained["loss"],
        "masked_lm_loss": found["masked_lm_loss"],
        "probe": found["probe"],
        "effect": effect(found["probe"]["by_distance"]),
        "settings": options.set,
    }
    with open(f"{out}/outcome.json", "w", encoding="utf-8") as file:
        json.dump(outcome, file, ensure_ascii=False, indent=1)
    print(json.dumps(outcome["effect"]))
    return 0 if outcome["effect"]["clear"] else 1


def effect(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy beyond `FAR` tokens, and whether the whole sequence clearly wins there."""
    far = [row for row in rows if row["from"] is not None and row["from"] >= FAR]
    count = sum(row["count"] for row in far)
    means = {
        key: sum(row[key] * row["count"] for row in far) / count if count else 0.0
        for key in ("model", "window", "unigram")
    }
    clear = means["model"] > 2 * max(means["window"], means["unigram"], 0.02)
    return {"beyond_tokens": FAR, "names": count, **means, "clear": clear}


def _command(*arguments: str) -> dict[str, Any]:
    """Runs `bigbird-ja` with --json, its log on standard error. Ends the script if it fails."""
    line = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    print(f"$ bigbird-ja {shlex.join(arguments)}", file=sys.stderr, flush=True)
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work_dir", default="out/probe")
    parser.add_argument("--config", default="probe-cpu")
    parser.add_argument("--set", action="append", default=[], help="as for bigbird-ja")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--plot", default="docs/images/probe.png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
