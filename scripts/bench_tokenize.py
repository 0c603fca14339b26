"""How long `bigbird-ja tokenize` takes against the `spm_train` that it wraps, on the same text.

    .venv/bin/python -m scripts.bench_tokenize --input ja_real.jsonl.gz [--repeat 1]

Both run in processes of their own, one after the other. The plain one is given what it needs ready
made: a text file, no line of it so long that it would be skipped. The target is a ratio of at most
1.10, with start-up, reading, splitting, sampling and statistics on our side. The ratio of processor
seconds is the one to trust on a machine that does other work at the same time.

`--rev COMMIT` times `tokenize` against that commit's instead, in pairs, on the same text.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile

from bigbird_ja.process.console import table
from bigbird_ja.settings.schema import TokenizeConfig
from bigbird_ja.text import tokenizer_training
from bigbird_ja.text.corpus import open_corpus
from scripts import revisions

_PLAIN = """
import json, sys, sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[1], model_prefix=sys.argv[2], minloglevel=1, **json.loads(sys.argv[3]))
"""


def main() -> None:
    """Prints one JSON object, or with --rev a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--vocab_size", type=int, default=32000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rev", help="an earlier commit to time against")
    args = parser.parse_args()
    if args.rev:
        _against_revision(args)
        return
    settings = TokenizeConfig(vocab_size=args.vocab_size, max_sentences=0)
    with tempfile.TemporaryDirectory() as scratch:
        text = os.path.join(scratch, "text.txt")
        with open(text, "w", encoding="utf-8", newline="\n") as file:
            for line in tokenizer_training.lines(open_corpus([args.input]), settings):
                file.write(line + "\n")
        arguments = json.dumps(tokenizer_training.trainer_arguments(settings))
        plain = [sys.executable, "-c", _PLAIN, text, os.path.join(scratch, "plain"), arguments]
        ours = [*_command(args, f"{scratch}/ours"), "--overwrite"]
        rounds = [(revisions.timed(plain), revisions.timed(ours)) for _ in range(args.repeat)]
        megabytes = os.path.getsize(text) / 1e6
    plain_wall, wall = (min(r[i].seconds for r in rounds) for i in (0, 1))
    plain_cpu, cpu = (min(r[i].cpu_seconds for r in rounds) for i in (0, 1))
    result = {
        "megabytes": megabytes,
        "plain_seconds": plain_wall,
        "tokenize_seconds": wall,
        "ratio": wall / plain_wall,
        "plain_cpu_seconds": plain_cpu,
        "tokenize_cpu_seconds": cpu,
        "cpu_ratio": cpu / plain_cpu,
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


def _command(args: argparse.Namespace, prefix: str) -> list[str]:
    return [
        sys.executable, "-m", "bigbird_ja", "tokenize", f"--input={args.input}",
        f"--output_prefix={prefix}", f"--vocab_size={args.vocab_size}", "--max_sentences=0",
    ]  # fmt: skip


def _against_revision(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch, revisions.tree_of(args.rev) as before:
        comparison = revisions.compare(
            "tokenize", before, args.repeat, lambda place: _command(args, f"{scratch}/{place}")
        )
    print(table([comparison.row()], revisions.HEADER))


if __name__ == "__main__":
    main()
