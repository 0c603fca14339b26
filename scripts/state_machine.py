"""The supervisor's state machine in docs/design/launch.md, from `decide.py`'s comments."""

import ast
import inspect
import re

from bigbird_ja.launch import decide
from testkit import ROOT

PAGE = "docs/design/launch.md"
PART = re.compile("(?s)(<!-- rules by `make docs` -->\n).*?(<!-- end -->)")
PHASES = ("idle", "creating", "running", "removing")


def pages() -> dict[str, str]:
    """Return path -> content of the page."""
    text = (ROOT / PAGE).read_text("utf-8")
    return {PAGE: PART.sub(lambda found: f"{found[1]}{rules()}{found[2]}", text)}


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
