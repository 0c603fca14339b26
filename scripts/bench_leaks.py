"""Lives seeded histories of rented runs in which anything fails; counts what may not be left.

    make bench-leaks                # 10,000 histories, half of each kind; two minutes

Prints one line per kind of machine: how many outlived their lease, runs over their budget of hours
or money, deletions asked for foreign machines, finished runs that were rented again, histories
without an end. Exits 1 where one is not zero.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from testkit.histories import History, Verdict, total

SERVICES = ("tpu", "compute")


def live(what: tuple[int, str]) -> Verdict:
    """Live one history."""
    return History(*what).run()


def main() -> int:
    """Count, and print a line for each service."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    clean = True
    with ProcessPoolExecutor(args.workers) as pool:
        for number, service in enumerate(SERVICES):
            count = (args.histories + number) // len(SERVICES)
            what = [(seed, service) for seed in range(count)]
            verdicts = list(pool.map(live, what, chunksize=20))
            row = total(verdicts)
            print(f"{service:8}", ", ".join(f"{name} {count:,}" for name, count in row.items()))
            for (seed, _), verdict in zip(what, verdicts, strict=True):
                if verdict != Verdict():
                    print(f"  seed {seed}: {verdict}")
                    clean = False
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
