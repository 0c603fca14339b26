"""Run the nightly tests in parts, and keep in tests/nightly.yaml when each part passed last.

    python -m scripts.nightly             # the parts, with last passing commit and duration
    python -m scripts.nightly PART ...    # run parts, or all: status 1 if one fails
    python -m scripts.nightly --check     # status 1 if a part is overdue or too long (`make lint`)

A pass is recorded only if the working tree is as committed. A part is overdue after `MAX_COMMITS`
commits that touch its subject.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from bigbird_ja.process.console import table
from testkit import ROOT

RECORD = ROOT / "tests" / "nightly.yaml"
MAX_COMMITS = 60
MAX_SECONDS = 2400
OPTIONS = "-n 2 --dist loadfile --no-loadscope-reorder --durations 10 -m nightly"

Parts = dict[str, dict[str, Any]]


def git(root: Path, *words: str) -> str | None:
    """Return the output of a git command, or None if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def read(path: Path) -> Parts:
    """Load the parts by name."""
    return yaml.safe_load(path.read_text("utf-8"))


def write(path: Path, parts: Parts) -> None:
    """Write the parts below the comment that the file begins with."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    comment = "".join(line for line in lines if line.startswith("#"))
    path.write_text(comment + yaml.safe_dump(parts, sort_keys=False, width=100), "utf-8")


def age(root: Path, part: dict[str, Any]) -> int | None:
    """Count the commits to a part's subject since it passed, or was declared; None if unknown."""
    since = part["passed"] or part["since"]
    words = ("rev-list", "--count", "--no-merges", f"{since}..HEAD", "--", *part["subject"])
    count = git(root, *words)
    return None if count is None else int(count)


def overdue(root: Path, parts: Parts) -> list[str]:
    """Return one line for each part that is too old or too long."""
    lines = []
    for name, part in parts.items():
        commits = age(root, part)
        how = f"passed at {part['passed']}" if part["passed"] else "never ran"
        run = f"run `python -m scripts.nightly {name}`"
        if commits is None:
            lines.append(f"nightly part {name}: git lacks commit {part['passed'] or part['since']}")
        elif commits > MAX_COMMITS:
            lines.append(f"nightly part {name}: {how}, {commits} commits to its subject ago: {run}")
        if (part["seconds"] or 0) > MAX_SECONDS:
            lines.append(f"nightly part {name}: took {part['seconds']} s: split it")
    return lines


def run(name: str) -> bool:
    """Run a part; record its commit and duration if it passes in a clean working tree."""
    part, started = read(RECORD)[name], time.monotonic()
    command = part.get("run") or f"{sys.executable} -m pytest {OPTIONS} {part['tests']}"
    status = subprocess.run(command, shell=True, cwd=ROOT).returncode  # noqa: S602 - patterns
    seconds = round(time.monotonic() - started)
    print(f"nightly part {name}: {f'status {status}' if status else 'passed'}, {seconds} s")
    if status:
        return False
    changed = git(ROOT, "status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}")
    if changed:
        print("not recorded: the working tree has changes that are not committed")
        return True
    parts = read(RECORD)
    commit = git(ROOT, "rev-parse", "--short=10", "HEAD")
    parts[name] |= {"passed": commit, "date": f"{time.strftime('%Y-%m-%d')}", "seconds": seconds}
    write(RECORD, parts)
    return True


def main() -> int:
    """Show, run or check the parts."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("part", nargs="*", help="or all")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    parts = read(RECORD)
    if options.check:
        lines = overdue(ROOT, parts)
        print(*lines, sep="\n", end="\n" * bool(lines), file=sys.stderr)
        return 1 if lines else 0
    if options.part:
        names = list(parts) if options.part == ["all"] else options.part
        if unknown := set(names) - set(parts):
            parser.error(f"no part {', '.join(unknown)} in {RECORD}: {', '.join(parts)}")
        return 1 if [name for name in names if not run(name)] else 0
    rows = [
        (
            name,
            *(part[key] or "never ran" for key in ("passed", "date", "seconds")),
            age(ROOT, part),
        )
        for name, part in parts.items()
    ]
    print(table(rows, ("part", "passed at", "date", "seconds", "commits since")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
