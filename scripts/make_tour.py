"""Writes the parts of pages that follow from calls, imports and comments: `make docs`.

These are the roads of docs/tour.md, the picture of docs/architecture.md and, from the comments of
`decide.py`, the supervisor's state machine in docs/design/launch.md.
"""

import ast
import inspect
import re

from bigbird_ja.launch import decide
from scripts import roads
from testkit import ROOT

PAGES = ("docs/tour.md", "docs/architecture.md", "docs/design/launch.md")
# What stands between two such lines is written anew.
PART = re.compile("(?s)(<!-- ([^\n]*) by `make docs` -->\n).*?(<!-- end -->)")
PHASES = ("idle", "creating", "running", "removing")


def pages() -> dict[str, str]:
    """Return path -> content of the pages."""
    code = roads.Code(ROOT)
    told: set[str] = set()
    others = {"picture": picture, "rules": rules}

    def part(found: re.Match[str]) -> str:
        name = found[2]
        text = others[name]() if name in others else _road(code, name, told)
        return f"{found[1]}{text}{found[3]}"

    return {name: PART.sub(part, (ROOT / name).read_text("utf-8")) for name in PAGES}


def _road(code: roads.Code, name: str, told: set[str]) -> str:
    """List the files of a road, with what each does where the page has not told it yet."""
    files = code.road(roads.ROADS[name]["stretches"])
    lines = ""
    for file in files:
        about = "" if file in told else f": {_summary(file)}"
        lines += f"- [{file}](../{roads.PACKAGE}/{file}){about}\n"
        told.add(file)
    return f"\n{len(files)} files:\n\n{lines}\n"


def _summary(file: str) -> str:
    """Return the beginning of a module's docstring, to where it gets particular."""
    path = ROOT / roads.PACKAGE / file
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    text = " ".join(text.partition("\n\n")[0].split())
    found = re.match(r"\S+ .{5,}?(?=[:;.,]? \(|[:;.] |[:.]?$)", text)
    sentence = found[0] if found else text
    head = sentence.partition(", ")[0]
    return head if len(head.split()) > 3 else sentence


def picture() -> str:
    """Draw which package imports which; what follows from other arrows is left out."""
    import grimp  # not beside TensorFlow 2.15, where this module is imported, too

    graph = grimp.build_graph(roads.PACKAGE, cache_dir=None)
    names = {path.parent.name for path in (ROOT / roads.PACKAGE).glob("*/__init__.py")}
    for name in names:
        graph.squash_module(f"{roads.PACKAGE}.{name}")
    direct: dict[str, set[str]] = {}
    for name in sorted(names):
        imported = graph.find_modules_directly_imported_by(f"{roads.PACKAGE}.{name}")
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
