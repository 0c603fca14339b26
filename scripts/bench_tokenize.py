"""How long `bigbird-ja tokenize` takes against the `spm_train` that it wraps, on the same text.

    python scripts/bench_tokenize.py --input ja_real.jsonl.gz [--vocab_size 32000] [--repeat 1]

Both run in processes of their own, one after the other. The plain one is given what it needs ready
made: a text file with one line per line, short enough not to be skipped. The target is a ratio of at
most 1.10, with start-up, reading, splitting, sampling and statistics on our side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from bigbird_ja.config_schema import TokenizeConfig
from bigbird_ja.text import training
from bigbird_ja.text.corpus import open_corpus

_PLAIN = """
import json, sys, sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[1], model_prefix=sys.argv[2], minloglevel=1, **json.loads(sys.argv[3]))
"""


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--vocab_size", type=int, default=32000)
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    settings = TokenizeConfig(vocab_size=args.vocab_size, max_sentences=0)
    with tempfile.TemporaryDirectory() as scratch:
        text = os.path.join(scratch, "text.txt")
        with open(text, "w", encoding="utf-8", newline="\n") as file:
            for line in training.lines(open_corpus([args.input]), settings):
                file.write(line + "\n")
        arguments = json.dumps(training.trainer_arguments(settings))
        plain = [sys.executable, "-c", _PLAIN, text, os.path.join(scratch, "plain"), arguments]
        ours = [
            sys.executable, "-m", "bigbird_ja", "tokenize", f"--input={args.input}",
            f"--output_prefix={scratch}/ours", f"--vocab_size={args.vocab_size}",
            "--max_sentences=0", "--overwrite",
        ]  # fmt: skip
        seconds: dict[str, list[float]] = {"plain": [], "ours": []}
        for _ in range(args.repeat):
            seconds["plain"].append(_timed(plain))
            seconds["ours"].append(_timed(ours))
        megabytes = os.path.getsize(text) / 1e6
    best = {name: min(values) for name, values in seconds.items()}
    print(
        json.dumps(
            {
                "megabytes": round(megabytes, 2),
                "plain_seconds": round(best["plain"], 2),
                "tokenize_seconds": round(best["ours"], 2),
                "ratio": round(best["ours"] / best["plain"], 3),
            }
        )
    )


def _timed(command: list[str]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


if __name__ == "__main__":
    main()
