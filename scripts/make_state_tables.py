"""Write the supervisor's state machine into docs/design/launch.md, from its own comments.

python -m scripts.make_state_tables
"""

import ast
import inspect
import sys

from bigbird_ja.launch import decide
from scripts.make_command_docs import ROOT, write

PAGE = "docs/design/launch.md"
BEGIN, END = "<!-- from the rules: scripts/make_state_tables -->", "<!-- end of the rules -->"
PHASES = ("idle", "creating", "running", "removing")


def rows(phase: str) -> list[str]:
    """Return the rows of a phase's table, a rule each, in their order.

    A helper that a branch calls without a comment of its own is a part of it.
    """
    source = inspect.getsource(decide)
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    return _rows(phase, functions, source.splitlines())


def _rows(name: str, functions: dict[str, ast.FunctionDef], lines: list[str]) -> list[str]:
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


def tables() -> str:
    """Write one table of Markdown per phase."""
    header = "| what is observed | what is done | because |\n|---|---|---|"
    return "\n\n".join("\n".join([f"**`{phase}`**", "", header, *rows(phase)]) for phase in PHASES)


def page(text: str) -> str:
    """Put the tables of today into the page.

    Raises:
        ValueError: it has no place for them.
    """
    head, begin, later = text.partition(BEGIN)
    _, end, tail = later.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: {BEGIN} and {END} are missing")
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


if __name__ == "__main__":
    sys.exit(write({PAGE: page((ROOT / PAGE).read_text("utf-8"))}))
