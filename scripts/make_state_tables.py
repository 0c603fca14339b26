"""Write the supervisor's state machine into docs/design/launch.md, from its own comments.

python -m scripts.make_state_tables
"""

import ast
import inspect
import sys
from dataclasses import dataclass

from bigbird_ja.launch import decide
from scripts.make_command_docs import ROOT, write

PAGE = "docs/design/launch.md"
BEGIN, END = "<!-- from the rules: scripts/make_state_tables -->", "<!-- end of the rules -->"
PHASES = ("idle", "creating", "running", "removing")


@dataclass(frozen=True)
class Rule:
    """A branch of a phase's function, and its comment taken apart."""

    lines: range  # of the branch, in decide.py
    observed: str
    action: str
    phases: tuple[str, ...]  # that may follow
    why: str


def rules(phase: str) -> list[Rule]:
    """Return the rules of a phase, in their order.

    A helper that a branch calls without a comment of its own is a part of it.
    """
    source = inspect.getsource(decide)
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    return _rules(phase, functions, source.splitlines())


def _rules(name: str, functions: dict[str, ast.FunctionDef], lines: list[str]) -> list[Rule]:
    result = []
    for node in functions[name].body:
        if not isinstance(node, ast.If | ast.Return):
            continue
        last = node.body[-1] if isinstance(node, ast.If) else node
        comment = _comment_above(lines, node.lineno)
        if comment:
            result.append(_rule(comment, range(node.lineno, (last.end_lineno or 0) + 1)))
        elif isinstance(last, ast.Return) and isinstance(last.value, ast.Call):
            assert isinstance(last.value.func, ast.Name)
            result += _rules(last.value.func.id, functions, lines)
    return result


def _comment_above(lines: list[str], number: int) -> str:
    """Join the comment that ends above a line."""
    words: list[str] = []
    while (line := lines[number - 2].strip()).startswith("#"):
        words.insert(0, line.lstrip("# "))
        number -= 1
    return " ".join(words)


def _rule(comment: str, lines: range) -> Rule:
    """Take a comment of the form of `decide.py` apart.

    Raises:
        ValueError: it has another one.
    """
    what, _, why = comment.partition(" Why: ")
    observed, _, action = what.partition(": ")
    action, _, phases = action.rstrip(".").partition(" -> ")
    if not why or not action:
        raise ValueError(f"not 'observed: action -> phases. Why: reason.': {comment}")
    return Rule(lines, observed, action, tuple(phases.split(", ") if phases else ()), why[:-1])


def tables() -> str:
    """Write one table of Markdown per phase."""
    parts = []
    for phase in PHASES:
        rows = [
            f"**`{phase}`**",
            "",
            "| what is observed | what is done | because |",
            "|---|---|---|",
        ]
        for rule in rules(phase):
            to = ", ".join(f"`{one}`" for one in rule.phases)
            done = f"{rule.action} → {to}" if to else rule.action
            rows.append(f"| {rule.observed} | {done} | {rule.why} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


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
