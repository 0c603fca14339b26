"""Runs every kind of bucket fault against every operation of `bigbird_ja.storage` and counts.

    make bench-faults        (or: python -m scripts.bench_faults)

Starts the fake bucket of the tests on loopback; needs no credentials and no network; takes about a
minute. "survived" is work done and data identical; "ended" is a lasting fault that ended within
its deadline with the object's name and the cause; "wrong" is anything else, and makes it exit 1.
"""

import logging
import os
import sys
import tempfile
from collections import defaultdict

from bigbird_ja.process import console
from testkit.fakes.gcs_process import FakeGcs
from testkit.fakes.matrix import Case, WrongEndError, cases, run_case


def main() -> int:
    """Runs the matrix; the exit status is 0 when every case ended as it must."""
    logging.getLogger("bigbird_ja.storage").setLevel(logging.ERROR)
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"survived": 0, "ended": 0, "wrong": 0})
    with FakeGcs() as fake, tempfile.TemporaryDirectory() as scratch:
        os.environ.update(fake.env)
        every = cases()
        with console.Progress(len(every), "cases") as progress:
            for number, case in enumerate(every):
                counts[case.kind][_end_of(case, number, fake, scratch)] += 1
                progress.update()
    rows: list[tuple[object, ...]] = [(kind, *ends.values()) for kind, ends in counts.items()]
    total = [sum(ends) for ends in zip(*(count.values() for count in counts.values()), strict=True)]
    rows.append(("all", *total))
    print(console.table(rows, ["fault", "survived", "ended", "wrong"]))
    return 1 if total[2] else 0


def _end_of(case: Case, number: int, fake: FakeGcs, scratch: str) -> str:
    os.environ["BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS"] = str(case.seconds)
    name = f"b-{number}"  # the rules match buckets of this form
    fake.create_bucket(name)
    try:
        run_case(case, fake, f"gs://{name}/d", scratch)
    except WrongEndError as error:
        console.log(f"{case.name}: {error}")
        return "wrong"
    return "ended" if case.ends else "survived"


if __name__ == "__main__":
    sys.exit(main())
