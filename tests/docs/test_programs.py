"""Every program that a page's commands call is there, where the page says to install it."""

import importlib.metadata
import re
import subprocess

import pytest

from testkit import ROOT

DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *(DOCS / "commands").glob("*.md"), *DOCS.glob("*.md")]
# Console scripts of packages in our locks: `make install`, or the extra `huggingface`.
LOCKED = {"hf": "huggingface-hub", "tensorboard": "tensorboard"}
GIVEN = {
    **dict.fromkeys(("cp", "iconv"), "every Linux and macOS"),
    **dict.fromkeys(("git", "make", "pip", "python"), "what `make install` itself needs"),
    "gcloud": "Google's SDK, which docs/cloud-setup.md asks for",
}
OURS = {"bigbird-ja", "cd", "export"}  # and words of the shell
KNOWN = "|".join([*LOCKED, *GIVEN])


def called(text):
    """The programs of command blocks, and of code in a line that begins with a known one."""
    for kind, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```", text):
        lines = re.sub(r"\\\n", " ", block).splitlines()
        shown = [line[2:] for line in lines if line.startswith("$ ")]  # the rest is output
        lines = shown or [line for line in lines if not re.match(r"\w+ = ", line)]
        for line in lines if kind in ("", "bash", "sh", "console") else ():
            plain = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "_", line)
            for part in re.split(r"&&|\|\|?|[;&]", plain):
                words = [word for word in part.split() if not re.match(r"[A-Z_]+=", word)]
                yield from [word for word in words[:1] if word != "_"]
    yield from re.findall(rf"`({KNOWN}) [^`\n]+`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_that_a_page_calls_are_there(page):
    text = page.read_text(encoding="utf-8")
    assert {*called(text)} - OURS - LOCKED.keys() - GIVEN.keys() == set()


def test_targets_that_pages_name_are_in_the_makefile():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = {*re.findall(r"`make ([a-z][\w-]*)[ `]", pages)}
    made = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
    assert targets and made.returncode == 0, made.stderr


def test_programs_of_the_locks_are_what_those_packages_bring():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {*called(pages)} >= LOCKED.keys() | GIVEN.keys(), "a declared one that no page calls"
    for program, package in LOCKED.items():
        scripts = importlib.metadata.distribution(package).entry_points
        assert program in scripts.select(group="console_scripts").names
        for lock in ("main", "estimator", "kaggle"):
            locked = (ROOT / f"requirements/{lock}.lock").read_text(encoding="utf-8")
            assert re.search(rf"(?m)^{package}==", locked), f"{lock}.lock: {package}"
