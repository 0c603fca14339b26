"""Parts of pages that follow from imports and comments (`make docs`).

These are the picture of docs/architecture.md and, from the comments of `decide.py`, the
supervisor's state machine in docs/design/launch.md.
"""

import ast
import inspect
import re

from bigbird_ja.launch import decide
from testkit import ROOT

PACKAGE = "bigbird_ja"
PAGES = ("docs/architecture.md", "docs/design/launch.md")
# The text between two such lines is replaced.
PART = re.compile("(?s)(<!-- ([^\n]*) by `make docs` -->\n).*?(<!-- end -->)")
PHASES = ("idle", "creating", "running", "removing")


def pages() -> dict[str, str]:
    """Return path -> content of the pages."""
    parts = {"picture": picture, "rules": rules}

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{parts[found[2]]()}{found[3]}"

    return {name: PART.sub(part, (ROOT / name).read_text("utf-8")) for name in PAGES}


def picture() -> str:
    """Draw which package imports which; what follows from other arrows is left out."""
    import grimp  # not beside TensorFlow 2.15, where this module is imported, too

    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    names = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    for name in names:
        graph.squash_module(f"{PACKAGE}.{name}")
    direct: dict[str, set[str]] = {}
    for name in sorted(names):
        imported = graph.find_modules_directly_imported_by(f"{PACKAGE}.{name}")
        direct[name] = {other.rpartition(".")[2] for other in imported} & names - {name}
    lines = ["", "```mermaid", "flowchart TD"]
    for name, others in direct.items():
        behind = set().union(*(_below(direct, other) for other in others))
        lines += [f"  {name} --> {other}" for other in sorted(others - behind)]
    return "\n".join([*lines, "```", "", ""])


def _below(direct: dict[str, set[str]], name: str) -> set[str]:
    return direct[name].union(*(_below(direct, other) for other in direct[name]))


def rules() -> str:
    """Write one table of Markdown per phase, a rule of `decide.py` in each row, in their order."""
    source = inspect.getsource(decide)
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    header = "| what is observed | what is done | because |\n|---|---|---|"
    tables = [
        "\n".join([f"**`{phase}`**", "", header, *_rows(phase, functions, source.splitlines())])
        for phase in PHASES
    ]
    return "\n\n".join(tables) + "\n"


def _rows(name: str, functions: dict[str, ast.FunctionDef], lines: list[str]) -> list[str]:
    """Return rows; a helper that a branch calls without a comment of its own is a part of it."""
    result = []
    for node in functions[name].body:
        if not isinstance(node, ast.If | ast.Return):
            continue
        last = node.body[-1] if isinstance(node, ast.If) else node
        if comment := _comment_above(lines, node.lineno):
            result.append(_row(comment))
        elif isinstance(last, ast.Return) and isinstance(last.value, ast.Call):
            assert isinstance(last.value.func, ast.Name)
            result += _rows(last.value.func.id, functions, lines)
    return result


def _comment_above(lines: list[str], number: int) -> str:
    """Join the comment that ends above a line."""
    words: list[str] = []
    while (line := lines[number - 2].strip()).startswith("#"):
        words.insert(0, line.lstrip("# "))
        number -= 1
    return " ".join(words)


def _row(comment: str) -> str:
    """Write a comment of the form of `decide.py` as a row: observed, done -> phases, why.

    Raises:
        ValueError: it has another one.
    """
    what, _, why = comment.partition(" Why: ")
    observed, _, action = what.partition(": ")
    action, _, phases = action.rstrip(".").partition(" -> ")
    if not why or not action:
        raise ValueError(f"not 'observed: action -> phases. Why: reason.': {comment}")
    to = ", ".join(f"`{phase}`" for phase in phases.split(", ") if phase)
    return f"| {observed} | {action}{' → ' * bool(to)}{to} | {why[:-1]} |"
