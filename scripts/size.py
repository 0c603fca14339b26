"""How large the house is: lines, files and functions by package (`make size`).

Counts Python files that git tracks. Lines are all lines; code lines leave out blank lines, comments
and docstrings. Function lengths count from `def` to the last line of the body.
"""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field

from bigbird_ja.process.console import table
from testkit import ROOT

_HEADER = (
    "package", "files", "lines", "code", "median file", "longest file", "median function",
    "longest function",
)  # fmt: skip
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass
class Size:
    """Of one package: lines of each file, code lines of each file, lines of each function."""

    files: list[int] = field(default_factory=list)
    code: int = 0
    functions: list[int] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Counts one file."""
        self.files.append(text.count("\n"))
        self.code += code_lines(text)
        self.functions += function_lengths(text)

    def row(self, name: str) -> tuple[object, ...]:
        """The line of the table."""
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
    """Lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def function_lengths(text: str) -> list[int]:
    """Lines of every function and method, nested ones too."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def package_of(path: str) -> str:
    """`bigbird_ja/data/order.py` -> `bigbird_ja/data`; tests are one package."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "bigbird_ja" and len(parts) > 2 else parts[0]


def measure(files: dict[str, str]) -> dict[str, Size]:
    """Sizes by package, of files by path."""
    sizes: dict[str, Size] = defaultdict(Size)
    for path, text in files.items():
        sizes[package_of(path)].add(text)
    return dict(sizes)


def read() -> dict[str, str]:
    """The tracked Python files, as they are in the working tree."""
    command = ["git", "ls-files", "*.py"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    there = [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text("utf-8") for name in there}


def main() -> None:
    """Prints the table."""
    sizes = measure(read())
    rows = [sizes[name].row(name) for name in sorted(sizes)]
    totals = {"package": "bigbird_ja", "tests and testkit": "test", "scripts": "scripts", "all": ""}
    for total, prefix in totals.items():
        parts = [size for name, size in sizes.items() if name.startswith(prefix)]
        rows.append(
            Size(
                [count for part in parts for count in part.files],
                sum(part.code for part in parts),
                [length for part in parts for length in part.functions],
            ).row(f"= {total}")
        )
    print(table(rows, _HEADER))


if __name__ == "__main__":
    main()
