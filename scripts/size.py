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
from dataclasses import dataclass, field

from bigbird_ja.process.console import table
from scripts import roads
from testkit import ROOT

# Raising one needs its reason in CHANGELOG.md. The aim: 21,000 lines, 140 files, 17,000 of tests.
CAPS = {"lines": 22_198, "files": 140, "tests": 17_367, "scripts": 2_459, "words": 40_000}

_HEADER = ("package", "files", "lines", "code", "median", "longest", "function", "longest")
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass
class Size:
    """Lines of each file of a package, its code lines, and the lines of each function."""

    files: list[int] = field(default_factory=list)
    code: int = 0
    functions: list[int] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Count one file."""
        self.files.append(text.count("\n"))
        self.code += code_lines(text)
        self.functions += function_lengths(text)

    def row(self, name: str) -> tuple[object, ...]:
        """Return the line of the table."""
        return (
            name,
            len(self.files),
            f"{sum(self.files):,}",
            f"{self.code:,}",
            round(statistics.median(self.files)),
            max(self.files),
            round(statistics.median(self.functions)) if self.functions else "-",
            max(self.functions, default=0),
        )


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


def measure(files: dict[str, str]) -> dict[str, Size]:
    """Return sizes by package (`bigbird_ja/data`; tests are one), of files by path."""
    sizes: dict[str, Size] = defaultdict(Size)
    for path, text in files.items():
        parts = path.split("/")
        is_part = parts[0] == roads.PACKAGE and len(parts) > 2
        sizes["/".join(parts[:2]) if is_part else parts[0]].add(text)
    return dict(sizes)


def total(sizes: dict[str, Size], *tops: str) -> Size:
    """Return the sum of the packages below some folders."""
    parts = [size for name, size in sizes.items() if name.split("/")[0] in tops]
    return Size(
        [count for part in parts for count in part.files],
        sum(part.code for part in parts),
        [length for part in parts for length in part.functions],
    )


def read(*patterns: str) -> dict[str, str]:
    """Return the tracked files of some patterns by path, as they are in the working tree."""
    command = ["git", "ls-files", *patterns]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    present = [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text("utf-8") for name in present}


def counted(sizes: dict[str, Size]) -> dict[str, int]:
    """Return what `CAPS` limits."""
    package = total(sizes, roads.PACKAGE)
    pages = read("README*.md", "docs/*.md")
    return {
        "lines": package.code,
        "files": len(package.files),
        "tests": total(sizes, "tests", "testkit").code,
        "scripts": total(sizes, "scripts").code,
        "words": sum(len(text.split()) for text in pages.values()),
    }


def main() -> int:
    """Print the tables; return 1 where a cap that is to be held is not."""
    sizes = measure(read("*.py"))
    counts = counted(sizes)
    if "--check" not in sys.argv[1:]:
        rows = [sizes[name].row(name) for name in sorted(sizes)]
        rows.append(total(sizes, roads.PACKAGE).row(f"= {roads.PACKAGE}"))
        print(table([*rows, total(sizes, "tests", "testkit").row("= tests and testkit")], _HEADER))
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
