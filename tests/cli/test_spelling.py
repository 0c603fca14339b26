"""Messages name parameters in backticks. Only the command line prints them as flags."""

import ast
import re

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from bigbird_ja.cli.spelling import spell_flags
from testkit import ROOT

# Modules that contain command lines with flags: startup script, demo, and advice of `plan`.
COMMAND_LINES = {"launch/machine/startup.py", "demo/demo.py", "demo/run_command.py", "plan/show.py"}
OTHER_PROGRAMS = ("gcloud", ".googleapis.com")


def test_parameters_in_backticks_are_printed_as_flags():
    flags = {"overwrite", "set", "input", "config", "mode"}
    for message, spelled in {
        "rename it by `overwrite`": "rename it by --overwrite",
        "`overrides`: unknown setting": "--set: unknown setting",
        "`inputs` x.txt: no file": "--input x.txt: no file",
        "`mode` train_and_eval": "--mode train_and_eval",
        "see `bigbird-ja config`, `pretrain`, `nsp`": "see `bigbird-ja config`, `pretrain`, `nsp`",
        "`texts` is empty": "`texts` is empty",
    }.items():
        assert spell_flags(message, flags) == spelled


def test_no_message_below_the_command_line_names_a_flag():
    known = {
        flag.name
        for name in cli.COMMANDS
        for flag in command_flags.own_flags(command_flags.collect_flags(cli.load_command(name)))
    }
    package = ROOT / "bigbird_ja"
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith(("cli/", "commands/")) or name in COMMAND_LINES:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(text, str) or id(node) in docs:
                continue
            if not any(program in text for program in OTHER_PROGRAMS):
                words = re.findall(r"--([a-z_]+)", text)
                found += [f"{name}:{node.lineno} --{word}" for word in words if word in known]
    assert found == []
