"""Print the size of the repository: files and lines of code by package, and totals (`make size`).

Counts files that git tracks. Lines of code exclude blank lines, comments and docstrings. Words are
those of all Markdown files outside the package.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict

from bigbird_ja.process.console import table
from testkit import ROOT

TOTALS = {
    "package": ("bigbird_ja",),
    "tests": ("tests", "testkit"),
    "scripts": ("scripts",),
    "examples": ("docs",),
}

_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Count the lines of code in a module, without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def read_tracked(pattern: str) -> dict[str, str]:
    """Return the contents of the tracked files that match a pattern, by path."""
    command = ["git", "ls-files", pattern]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    present = [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text("utf-8") for name in present}


def main() -> int:
    """Print the tables."""
    folders: dict[str, list[int]] = defaultdict(list)
    for path, text in read_tracked("*.py").items():
        parts = path.split("/")[:-1]
        name = "/".join(parts[:2] if parts[:1] == ["bigbird_ja"] else parts[:1])
        folders[name].append(code_lines(text))
    rows = [(name, len(lines), f"{sum(lines):,}") for name, lines in sorted(folders.items())]
    print(table(rows, ("package", "files", "lines of code")), end="\n\n")

    pages = [t for path, t in read_tracked("*.md").items() if not path.startswith("bigbird_ja/")]
    totals = [
        (total, f"{sum(sum(lines) for f, lines in folders.items() if f.split('/')[0] in names):,}")
        for total, names in TOTALS.items()
    ]
    print(table([*totals, ("words", f"{sum(len(t.split()) for t in pages):,}")], ("total", "now")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
