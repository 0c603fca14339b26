"""The Japanese pages say what the English ones say, as far as that can be compared."""

import re

import pytest

from testkit import ROOT


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name):
    """Code blocks, without their comments and without drawings."""
    result = re.findall(r"```(\w*)\n(.*?)```", page(name), re.DOTALL)
    return [re.sub(r" +# .*", "", block) for kind, block in result if kind != "mermaid"]


@pytest.mark.parametrize("name", ["README", "docs/guide"])
def test_the_commands_are_the_same(name):
    assert blocks(f"{name}.ja.md") == blocks(f"{name}.md")


def test_every_message_is_there():
    def messages(name):
        rows = [line for line in page(name).splitlines() if line.startswith("| `")]
        return {result for row in rows for result in re.findall("`([^`]+)`", row.split(" | ")[0])}

    assert messages("docs/troubleshooting.ja.md") >= messages("docs/troubleshooting.md")
