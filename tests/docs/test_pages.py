"""Files, names, messages and commands that documentation pages quote exist in the repository.

`make site` checks links within docs/. This file checks the links of other pages.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from bigbird_ja import cli
from bigbird_ja.settings.variants import OPTIONS
from scripts import make_docs
from testkit import ROOT

PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.name != "DEVELOPERS.md"
)


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def test_pages_have_not_drifted():
    for name, text in make_docs.pages().items():
        assert text_of(name) == text, f"{name}: `make docs`"


def test_both_readmes_and_the_site_have_every_command_and_setting():
    pages = make_docs.site_pages()
    settings = pages.pop("docs/settings.md")
    assert [name for name in OPTIONS if f"\n| `{name.partition('.')[2]}` | " not in settings] == []
    for path, page in pages.items():
        assert path.removeprefix("docs/") in text_of("mkdocs.yml") and page.count("```") > 1
    for readme in ("README.md", "README.ja.md"):
        assert [name for name in cli.COMMANDS if f"`{name}`" not in text_of(readme)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] != "docs"], ids=str)
def test_links_have_existing_targets(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith(("http", "mailto")):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            headings = re.findall(r"(?m)^#+ (.*)$", text_of(there))
            plain = [re.sub(r"[^\w\- ]", "", heading.lower().strip()) for heading in headings]
            assert anchor in {heading.replace(" ", "-") for heading in plain}, target


def test_modules_that_pages_name_exist():
    folders = ("bigbird_ja", "docs", "scripts", "testkit", "tests")
    there = [f"/{path.relative_to(ROOT)}" for f in folders for path in (ROOT / f).rglob("*.py")]
    for page in PAGES:
        for name in re.findall(r"`([\w/]+\.py)", text_of(page)):
            assert any(path.endswith(f"/{name}") for path in there), f"{page}: {name}"
        # Tests that a page names, such as `train/test_train.py::test_x`, exist.
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)", text_of(page)):
            assert f"def {name}(" in text_of(f"tests/{path}"), f"{page}: {path}::{name}"


def test_names_of_modules_that_pages_quote_exist():
    code = {}
    for path in (ROOT / "bigbird_ja").rglob("*.py"):
        code[path.stem] = code.get(path.stem, "") + path.read_text("utf-8")
    for page in set(PAGES) - {Path("CHANGELOG.md")}:
        for module, name in re.findall(r"`(\w+)\.(\w+)(?:\(\))?`", text_of(page)):
            known = f"{module}.{name}" in OPTIONS or name in (
                "json",
                "md",
                "model",
                "py",
                "sh",
                "yaml",
            )
            assert module not in code or known or name in code[module], f"{page}: {module}.{name}"


def quoted(page):
    """Return the messages of `bigbird-ja` in the first column of a page's tables."""
    rows = re.findall(r"(?m)^\| (`.*)$", text_of(page))
    firsts = [row.split(" | ")[0] for row in rows]
    return re.findall("`([^`]+)`", " ".join(f for f in firsts if "transformers" not in f))


def test_messages_that_troubleshooting_quotes_are_in_the_code_and_in_japanese():
    texts = "\n".join(
        text
        for path in (ROOT / "bigbird_ja").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (text := constant(node))
    )
    english, japanese = "docs/troubleshooting.md", "docs/troubleshooting.ja.md"
    for page in (english, japanese, "docs/cloud-setup.md"):
        for message in quoted(page):
            assert all(part in texts for part in re.split(r"…|\bN\b", message)), message
    assert {*quoted(english)} <= {*quoted(japanese)}


def constant(node):
    """Return the text of a string in the code, with NUL in place of each inserted value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(constant, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "\0" if isinstance(node, ast.FormattedValue) else ""


def test_targets_that_pages_call_exist():
    pages = [page for page in PAGES if page.parts[1:2] not in (("design",), ("lab",))]
    targets = {*re.findall(r"`make ([a-z][\w-]*)[ `]", "".join(map(text_of, pages)))}
    made = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
    assert targets and made.returncode == 0, made.stderr


@pytest.mark.parametrize("page", sorted(ROOT.glob("**/*.ja.md")), ids=lambda page: page.stem)
def test_the_commands_are_the_same_in_japanese(page):
    def blocks(path):
        found = re.findall(r"```(\w*)\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
        return [re.sub(r" +# .*", "", block) for kind, block in found if kind != "mermaid"]

    assert blocks(page) == blocks(page.with_name(page.name.replace(".ja.", ".")))
