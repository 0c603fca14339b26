"""Pages name modules and quote messages that are there; links of the pages outside docs/ lead
somewhere (`make site` checks those within)."""

import ast
import re

import pytest

from testkit import ROOT

PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.name != "DEVELOPERS.md"
)


def anchors(page):
    """Those of the headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", h.lower().strip()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] != "docs"], ids=str)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http", "mailto")):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), target


def test_modules_that_pages_name_are_there():
    folders = ("bigbird_ja", "docs", "scripts", "testkit", "tests")
    there = [f"/{path.relative_to(ROOT)}" for f in folders for path in (ROOT / f).rglob("*.py")]
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w/]+\.py)", text):
            assert any(path.endswith(f"/{name}") for path in there), f"{page}: {name}"
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)", text):  # a test
            tests = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert f"def {name}(" in tests, f"{page}: {path}::{name}"


def test_messages_that_troubleshooting_quotes_are_in_the_code():
    texts = "\n".join(
        text
        for path in (ROOT / "bigbird_ja").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (text := constant(node))
    )
    for page in ("docs/troubleshooting.md", "docs/troubleshooting.ja.md", "docs/cloud-setup.md"):
        for row in re.findall(r"(?m)^\| (`.*)$", (ROOT / page).read_text(encoding="utf-8")):
            first = row.split(" | ")[0]
            for message in re.findall("`([^`]+)`", "" if "transformers" in first else first):
                assert all(part in texts for part in re.split(r"…|\bN\b", message)), message


def constant(node):
    """The text of a string in the code; "\0" where a value is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(constant, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "\0" if isinstance(node, ast.FormattedValue) else ""
