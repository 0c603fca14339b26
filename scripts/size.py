"""Print the size of the repository: files and lines of code by package, and totals (`make size`).

    python -m scripts.size [--check]   # status 1 if a total is over its cap (`make lint`)

Counts files that git tracks. Lines of code leave out blank lines, comments and docstrings.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict

from bigbird_ja.process.console import table
from testkit import ROOT

# Lines of code, and words of all Markdown, the changelog included. Raise one only with a reason.
CAPS = {"package": 23_200, "tests": 18_600, "scripts": 2_000, "words": 28_000}
SLACK = 1.02  # of a cap, before `make lint` fails

_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Count the lines of code in a module: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT and token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def tracked(pattern: str) -> dict[str, str]:
    """Return the tracked files of a pattern by path, as they are in the working tree."""
    command = ["git", "ls-files", pattern]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    present = [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text("utf-8") for name in present}


def main() -> int:
    """Print the tables; return 1 if a cap that is checked is exceeded."""
    parts: dict[str, list[int]] = defaultdict(list)
    totals = dict.fromkeys(CAPS, 0)
    pages = [text for path, text in tracked("*.md").items() if not path.startswith("bigbird_ja/")]
    totals["words"] = sum(len(text.split()) for text in pages)
    kinds = {"bigbird_ja": "package", "tests": "tests", "testkit": "tests", "scripts": "scripts"}
    for path, text in tracked("*.py").items():
        folders = path.split("/")[:-1]
        lines = code_lines(text)
        parts["/".join(folders[:2] if folders[:1] == ["bigbird_ja"] else folders[:1])].append(lines)
        if kind := kinds.get(folders[0]):
            totals[kind] += lines
    if "--check" not in sys.argv[1:]:
        rows = [(name, len(files), f"{sum(files):,}") for name, files in sorted(parts.items())]
        print(table(rows, ("package", "files", "lines of code")), end="\n\n")
    print(table([(name, totals[name], CAPS[name]) for name in CAPS], ("total", "now", "cap")))
    above = [name for name, cap in CAPS.items() if totals[name] > SLACK * cap]
    if above:
        print(f"over the cap (CAPS in scripts/size.py): {', '.join(above)}", file=sys.stderr)
    return 1 if above and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
