"""The set-up guide: every command of ours in it exists, flags and all."""

import re
import shlex

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from scripts import make_state_tables


def test_the_commands_of_the_guide_parse():
    with open("docs/cloud-setup.md", encoding="utf-8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("bigbird-ja")]
    assert len(commands) > 5
    for _, command, *flags in commands:
        command_flags.parse(cli.load_command(command), command, flags)


def test_the_design_page_shows_the_supervisors_rules():
    """`python -m scripts.make_state_tables` writes them."""
    with open(make_state_tables.PAGE, encoding="utf-8") as file:
        text = file.read()
    assert make_state_tables.page(text) == text
    assert text.count("→ `removing` |") > 10
