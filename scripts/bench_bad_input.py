"""Bad input of every kind, by command: `make bench-bad-input` (two minutes on two cores).

Each case of testkit/bad_inputs.py must end with status 2 and one clear line, and write nothing.
Prints how many did, out of how many tried; exits with 1 unless all did.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
from pathlib import Path

from bigbird_ja import console, tensorflow_env
from testkit import bad_inputs, command_line, runs


def main() -> int:
    """Tries all, prints the table."""
    tensorflow_env.prepare(os.environ)
    tried: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="bad-input-") as scratch:
        place = Path(scratch)
        world = bad_inputs.make_world(place / "world", _small_run(place))
        with console.Progress(len(bad_inputs.CASES), "cases") as progress:
            for number, case in enumerate(bad_inputs.CASES):
                command = case.split()[0]
                problem = bad_inputs.problem_of(case, world, place / f"out-{number}")
                tried[command] += 1
                refused[command] += problem is None
                if problem is not None:
                    console.log(f"{case}: {problem}")
                progress.update()
    rows = [(command, refused[command], count) for command, count in tried.items()]
    rows.append(("all", refused.total(), tried.total()))
    print(console.table(rows, ("command", "refused cleanly", "tried")))
    return int(refused != tried)


def _small_run(place: Path) -> runs.SmallRun:
    corpus, prefix = str(place / "corpus.jsonl"), str(place / "ja")
    for arguments in (
        ["sample", f"--output={corpus}", "--documents=60"],
        ["tokenize", f"--input={corpus}", f"--output_prefix={prefix}", "--vocab_size=1200"],
    ):
        ended = command_line.run_cli(*arguments)
        if ended.status:
            raise SystemExit(ended.stderr)
    return runs.make(place, corpus, f"{prefix}.model")


if __name__ == "__main__":
    sys.exit(main())
