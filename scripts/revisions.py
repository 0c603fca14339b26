"""Time a command of this tree against the same command of an earlier commit, in pairs.

The two take turns, and so does which of them is first: what else the machine does meets both alike.
Processor seconds tell more than the clock on a machine that is busy.
"""

import compileall
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from testkit import ROOT


@dataclass
class Taken:
    """Holds what a command took, with its children."""

    seconds: float = 0.0  # by the clock
    cpu_seconds: float = 0.0


HEADER = ["now / before", "pairs", "cpu s before", "cpu s now", "ratio of cpu", "of the clock"]


@contextlib.contextmanager
def tree_of(revision: str) -> Iterator[str]:
    """Give the files of a commit in a folder that goes away, compiled as this tree's are."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if archive.returncode:
        raise SystemExit(f"--rev={revision}: git has no such commit here")
    with tempfile.TemporaryDirectory(prefix="before-") as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        for tree in (folder, str(ROOT)):
            compileall.compile_dir(f"{tree}/bigbird_ja", quiet=1)
        yield folder


@contextlib.contextmanager
def clock(taken: Taken) -> Iterator[None]:
    """Note what the processes that are started within take."""
    start, before = time.monotonic(), os.times()
    yield
    taken.seconds, after = time.monotonic() - start, os.times()
    taken.cpu_seconds = after.children_user - before.children_user
    taken.cpu_seconds += after.children_system - before.children_system


def timed(command: Sequence[str], tree: str) -> Taken:
    """Run a command to its end, with the packages of `tree`."""
    taken, environ = Taken(), os.environ | {"PYTHONPATH": tree}
    with clock(taken):
        subprocess.run(command, check=True, cwd=tree, env=environ, capture_output=True)
    return taken


def compare(
    name: str, before: str, rounds: int, command: Callable[[str], Sequence[str]]
) -> list[object]:
    """Time a command in two trees, one after the other, `rounds` times; the row below `HEADER`.

    Ratios are medians over the pairs of now / before.

    Args:
        name: of the comparison.
        before: the tree of the earlier commit.
        rounds: pairs.
        command: given "before0", "now0", ...: what to run, in a place of that name.
    """
    trees = {"before": before, "now": str(ROOT)}
    taken: dict[str, list[Taken]] = {side: [] for side in trees}
    for number in range(rounds):
        for side in sorted(trees, reverse=bool(number % 2)):
            taken[side].append(timed(command(f"{side}{number}"), trees[side]))
    pairs = [*zip(taken["before"], taken["now"], strict=True)]
    cpu = [f"{min(one.cpu_seconds for one in taken[side]):.2f}" for side in trees]
    ratio_of_cpu = statistics.median(now.cpu_seconds / then.cpu_seconds for then, now in pairs)
    ratio = statistics.median(now.seconds / then.seconds for then, now in pairs)
    return [name, rounds, *cpu, f"{ratio_of_cpu:.3f}", f"{ratio:.3f}"]
