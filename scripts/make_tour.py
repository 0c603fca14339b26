"""`make docs`: writes the roads of docs/tour.md and the picture of docs/architecture.md from calls.

python -m scripts.make_tour [TREE]    # with another checkout it prints the picture of that
"""

import ast
import re
import sys
from pathlib import Path

from scripts import roads
from scripts.make_command_docs import write
from testkit import ROOT

TOUR, ARCHITECTURE = "docs/tour.md", "docs/architecture.md"
# What stands between two such lines is written anew.
PART = re.compile("(?s)(<!-- ([^\n]*) by `make docs` -->\n).*?(<!-- end -->)")


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return path -> content of the two pages."""
    code = roads.Code(root)
    told: set[str] = set()

    def part(found: re.Match[str]) -> str:
        name = found[2]
        text = picture(root, code) if name == "picture" else _road(code, root, name, told)
        return f"{found[1]}{text}{found[3]}"

    texts = {name: (root / name).read_text("utf-8") for name in (TOUR, ARCHITECTURE)}
    return {name: PART.sub(part, text) for name, text in texts.items()}


def _road(code: roads.Code, root: Path, name: str, told: set[str]) -> str:
    """List the files of a road, with what each does where the page has not told it yet."""
    files = {
        code.files[step.partition(":")[0]]: None
        for start, stations in roads.ROADS[name][1]
        for station in stations.split()
        for step in reversed(code.way(code.named(start), code.named(station)))
    }
    lines = ""
    for file in files:
        about = "" if file in told else f": {_summary(root / roads.PACKAGE / file)}"
        lines += f"- [{file}](../{roads.PACKAGE}/{file}){about}\n"
        told.add(file)
    return f"\n{len(files)} files:\n\n{lines}\n"


def _summary(path: Path) -> str:
    """Return the beginning of a module's docstring, to where it gets particular."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    text = " ".join(text.partition("\n\n")[0].split())
    found = re.match(r"\S+ .{5,}?(?=[:;.,]? \(|[:;.] |[:.]?$)", text)
    sentence = found[0] if found else text
    head = sentence.partition(", ")[0]
    return head if len(head.split()) > 3 else sentence


def picture(root: Path, code: roads.Code) -> str:
    """Draw which package imports which; what follows from other arrows is left out."""
    names = [path.name for path in sorted((root / roads.PACKAGE).iterdir()) if path.is_dir()]
    names = [name for name in names if f"{roads.PACKAGE}.{name}" in code.files]
    direct = {name: code.imports(name) & set(names) - {name} for name in names}
    lines = ["", "```mermaid", "flowchart TD"]
    for name, others in direct.items():
        behind = set().union(*(_below(direct, other) for other in others))
        lines += [f"  {name} --> {other}" for other in sorted(others - behind)]
    return "\n".join([*lines, "```", "", ""])


def _below(direct: dict[str, set[str]], name: str) -> set[str]:
    return direct[name].union(*(_below(direct, other) for other in direct[name]))


if __name__ == "__main__":
    sys.exit(write(pages()))
