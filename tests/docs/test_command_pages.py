"""docs/commands/ says what the flags say."""

import os

import pytest

from bigbird_ja import cli
from bigbird_ja.settings.schema import OPTIONS
from scripts import make_command_docs, make_settings_page, make_tour
from testkit import ROOT


def test_pages_have_not_drifted():
    pages = make_command_docs.pages()
    for name, text in pages.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: `make docs`"
    there = {f"docs/commands/{name}" for name in os.listdir(ROOT / "docs/commands")}
    assert there <= pages.keys()


def test_the_tour_and_the_picture_have_not_drifted():
    for name, text in make_tour.pages().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: `make docs`"


def test_the_reference_of_settings_has_not_drifted():
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert text == make_settings_page.page(), "`make docs`"
    assert all(f"| `{option.name}` |" in text for option in OPTIONS.values())


@pytest.mark.parametrize("readme", ["README.md", "README.ja.md"])
def test_both_readmes_name_every_command(readme):
    text = (ROOT / readme).read_text(encoding="utf-8")
    assert [name for name in cli.COMMANDS if f"`{name}`" not in text] == []
