"""Counts the changed expressions that tests notice: a seeded sample of each module's mutants.

  python -m scripts.mutants [--sample 50]

`make mutants` tries them all, for hours; this tries so many of each module in `[tool.mutmut]`, as
far as they have no result yet, and prints the table of docs/lab/mutants.md. Stopped and started
again it continues. `mutmut show NAME` shows a mutant.
"""

import argparse
import json
import random
import subprocess
from collections import Counter
from pathlib import Path

MUTANTS = Path("mutants")
RUN = ("mutmut", "run", "--max-children", "1")
SMALLEST = "bigbird_ja.process.x_*"  # mutmut makes all mutants before it tries some
# Exit status of the tests under a mutant, as mutmut stores it; all others mean that it was noticed.
UNNOTICED: dict[int | None, str] = {0: "survived", 33: "not reached"}


def _results() -> dict[str, dict[str, int | None]]:
    """Read module -> mutant -> exit status of the tests; None: not tried."""
    metas = sorted(MUTANTS.rglob("*.meta"))
    read = {str(m.relative_to(MUTANTS).with_suffix("")): json.loads(m.read_text()) for m in metas}
    return {path: meta["exit_code_by_key"] for path, meta in read.items()}


def _sample(results: dict[str, int | None], size: int) -> list[str]:
    """Choose the same ones each time, whatever was tried."""
    return random.Random(0).sample(sorted(results), min(size, len(results)))


def main() -> None:
    """Tries what was not tried, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=50)
    size = parser.parse_args().sample
    if not MUTANTS.exists():
        subprocess.run([*RUN, SMALLEST], check=True)
    todo = [
        name
        for results in _results().values()
        for name in _sample(results, size)
        if results[name] is None
    ]
    if todo:
        subprocess.run([*RUN, *todo], check=True)
    print("| module | mutants | sampled | noticed | survived | not reached |")
    print("|---|---|---|---|---|---|")
    for module, results in _results().items():
        ends = Counter(UNNOTICED.get(results[one], "noticed") for one in _sample(results, size))
        counts = [ends[word] for word in ("noticed", "survived", "not reached")]
        print(f"| `{module}` |", *(f"{n} |" for n in (len(results), sum(counts), *counts)))
    for results in _results().values():
        for name in sorted(_sample(results, size)):
            if results[name] in UNNOTICED:
                print(UNNOTICED[results[name]], name)


if __name__ == "__main__":
    main()
