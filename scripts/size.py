"""Print how large the house is: lines, files and functions by package, and its roads (`make size`).

    python -m scripts.size [--check]   # with --check it ends with 1 above a cap, for `make lint`

Counts Python files that git tracks. Lines are all lines; code lines leave out blank lines, comments
and docstrings, those of fields too. Function lengths count from `def` to the last line of the body.
"""

import ast
import io
import statistics
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Sequence
from functools import cache

from bigbird_ja.process.console import table
from scripts import roads
from testkit import ROOT

# Raising one needs its reason in CHANGELOG.md. The aim: 21,000 lines, 140 files, 17,000 of tests.
CAPS = {"lines": 22_223, "files": 140, "tests": 17_324, "scripts": 2_401, "words": 40_000}
TESTS = ("tests/", "testkit/")

_HEADER = ("package", "files", "lines", "code", "median", "longest", "function", "longest")
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def row(name: str, texts: Sequence[str]) -> tuple[object, ...]:
    """Return the line of the table for some files."""
    files = [text.count("\n") for text in texts]
    functions = [length for text in texts for length in function_lengths(text)]
    return (
        name,
        len(files),
        f"{sum(files):,}",
        f"{sum(map(code_lines, texts)):,}",
        round(statistics.median(files)),
        max(files),
        round(statistics.median(functions)) if functions else "-",
        max(functions, default=0),
    )


@cache
def code_lines(text: str) -> int:
    """Count the lines that hold code: no blank lines, comments or docstrings (of fields too)."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # also below the field of a class
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def function_lengths(text: str) -> list[int]:
    """Return the lines of every function and method, nested ones too."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def below(files: dict[str, str], *folders: str) -> list[str]:
    """Return the texts of the files below some folders."""
    return [text for path, text in files.items() if path.startswith(tuple(folders))]


def read(*patterns: str) -> dict[str, str]:
    """Return the tracked files of some patterns by path, as they are in the working tree."""
    command = ["git", "ls-files", *patterns]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    present = [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text("utf-8") for name in present}


def counted(files: dict[str, str]) -> dict[str, int]:
    """Return what `CAPS` limits."""
    package = below(files, f"{roads.PACKAGE}/")
    return {
        "lines": sum(map(code_lines, package)),
        "files": len(package),
        "tests": sum(map(code_lines, below(files, *TESTS))),
        "scripts": sum(map(code_lines, below(files, "scripts/"))),
        "words": sum(len(text.split()) for text in read("README*.md", "docs/*.md").values()),
    }


def main() -> int:
    """Print the tables; return 1 where a cap that is to be held is not."""
    files = read("*.py")
    counts = counted(files)
    if "--check" not in sys.argv[1:]:
        packages: dict[str, list[str]] = defaultdict(list)
        for path, text in files.items():
            parts = path.split("/")
            is_part = parts[0] == roads.PACKAGE and len(parts) > 2
            packages["/".join(parts[:2]) if is_part else parts[0]].append(text)
        packages = dict(sorted(packages.items()))
        packages[f"= {roads.PACKAGE}"] = below(files, f"{roads.PACKAGE}/")
        packages["= tests and testkit"] = below(files, *TESTS)
        print(table([row(*package) for package in packages.items()], _HEADER))
        print()
        roads.main()
        print()
    print(table([(name, counts[name], CAPS[name]) for name in CAPS], ("size", "now", "cap")))
    above = [name for name in CAPS if counts[name] > CAPS[name]]
    if above:
        print(f"above the cap (CAPS in scripts/size.py): {', '.join(above)}", file=sys.stderr)
    return 1 if above and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
