"""In a checkout the version contains the commit. All files state the same version."""

import re
import shutil
import subprocess

import yaml

import bigbird_ja
from bigbird_ja.version import VERSION, find_version
from testkit import ROOT


def test_a_checkout_states_its_commit_and_a_copy_does_not(tmp_path):
    package = tmp_path / "clone/bigbird_ja"
    shutil.copytree(ROOT / "bigbird_ja", package, ignore=shutil.ignore_patterns("[!v]*.py", "*/"))
    assert find_version(package) == VERSION
    git = ["git", "-C", str(package.parent), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    find_version.cache_clear()
    assert re.fullmatch(re.escape(VERSION) + r"\+g[0-9a-f]{10}", find_version(package))
    assert bigbird_ja.__version__.startswith(VERSION)


def test_every_file_states_the_same_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == VERSION
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"(?m)^## (\S+)", changelog)[0] == VERSION.partition(".dev")[0]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/examples/*.yaml")]
    for page in pages:
        for wheel in re.findall(r"bigbird_ja-([\w.]+)-py3", page.read_text("utf-8")):
            assert wheel == VERSION, page
