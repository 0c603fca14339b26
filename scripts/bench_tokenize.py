"""Times `bigbird-ja tokenize` against the `spm_train` that it wraps, on the same text.

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
    """Print one JSON object, or with --rev a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--vocab_size", type=int, default=32000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rev", help="an earlier commit to time against")
    args = parser.parse_args()
    settings = TokenizeConfig(vocab_size=args.vocab_size, max_sentences=0)
    with tempfile.TemporaryDirectory() as scratch:

        def ours(place: str) -> list[str]:
            flags = {"input": args.input, "output_prefix": f"{scratch}/{place}"}
            flags |= {"vocab_size": args.vocab_size, "max_sentences": 0}
            words = [f"--{name}={value}" for name, value in flags.items()]
            return [sys.executable, "-m", "bigbird_ja", "tokenize", *words, "--overwrite"]

        if args.rev:
            with revisions.tree_of(args.rev) as before:
                row = revisions.compare("tokenize", before, args.repeat, ours).row()
            print(table([row], revisions.HEADER))
            return
        text = os.path.join(scratch, "text.txt")
        with open(text, "w", encoding="utf-8", newline="\n") as file:
            for line in tokenizer_training.lines(open_corpus([args.input]), settings):
                file.write(line + "\n")
        arguments = json.dumps(tokenizer_training.trainer_arguments(settings))
        plain = [sys.executable, "-c", _PLAIN, text, os.path.join(scratch, "plain"), arguments]
        rounds = [
            (revisions.timed(plain), revisions.timed(ours("ours"))) for _ in range(args.repeat)
        ]
        megabytes = os.path.getsize(text) / 1e6
    result: dict[str, float] = {"megabytes": megabytes}
    for kind, prefix in (("seconds", ""), ("cpu_seconds", "cpu_")):
        theirs, mine = (min(getattr(pair[i], kind) for pair in rounds) for i in (0, 1))
        result |= {f"plain_{kind}": theirs, f"tokenize_{kind}": mine}
        result[f"{prefix}ratio"] = mine / theirs
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
