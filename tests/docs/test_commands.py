"""Commands in documentation pages can be parsed, and all names in them exist.

These are names of flags, settings, presets, make targets, scripts and extras. test_guide.py also
runs the commands of the guide.
"""

import re
import shlex
import subprocess

import pytest
import tomllib

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from scripts import make_docs
from testkit import ROOT
from testkit.configs import resolve_flags

FILES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")]
EXAMPLES = [*ROOT.glob("docs/examples/*.py")]
PAGES = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in FILES}
PAGES |= make_docs.site_pages()
for path in EXAMPLES:
    PAGES[str(path.relative_to(ROOT))] = re.sub(
        r"(?m)^    (?=\w+ )(.*?)(?<!\\)$", r"```\n\1\n```", path.read_text("utf-8").split('"""')[1]
    )
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].keys()
# Programs of other projects that the commands of pages call.
OTHERS = {"pip", "cd", "export", "git", "hf", "gcloud", "kaggle", "tensorboard", "uvicorn"}


def commands(page):
    """Return the words of each command in a page's code blocks, without redirections."""
    found = []
    for kind, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", PAGES[page]):
        if kind in ("", "bash", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                reader = shlex.shlex(line, posix=True, punctuation_chars=True)
                reader.whitespace_split, words = True, [[]]
                for word in reader:
                    if word in ("&&", "&", "|", ">"):
                        words.append([">"] * (word == ">"))
                    elif words[-1] or not re.match(r"[A-Z_]+=", word):
                        words[-1].append(word)
                found += [each for each in words if each and each[0] != ">"]
    return found


def check(words):
    """Fail if a command cannot be parsed, or names a missing flag, setting, target or script."""
    program, *rest = words
    if program.rpartition("/")[2] == "bigbird-ja":
        args = command_flags.parse(cli.load_command(rest[0]), rest[0], rest[1:])
        if "config" in args and "set" in args and "my.yaml" not in rest:
            resolve_flags(args)
    elif program == "make":
        targets = [word for word in rest if "=" not in word]
        done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif program == "python" and rest[:1] == ["-m"] and rest[1].startswith("scripts."):
        source = ROOT / f"{rest[1].replace('.', '/')}.py"
        check_flags(source, rest[2:])
    elif program == "python" and rest[0].endswith(".py"):
        check_flags(ROOT / rest[0], rest[1:])
    else:
        assert program in OTHERS, f"{program}: neither ours nor known"


def check_flags(source, words):
    text = source.read_text("utf-8")
    # An example may declare flags by a function of another example in the same folder.
    imported = re.findall(r"(?m)^(?:import|from) (\w+)", text)
    imported_files = [source.with_name(f"{name}.py") for name in imported]
    text += "".join(path.read_text("utf-8") for path in imported_files if path.exists())
    for flag in [word.partition("=")[0] for word in words if word.startswith("--")]:
        assert f'"{flag}"' in text, f"{source.name} has no {flag}"


@pytest.mark.parametrize("page", [page for page in PAGES if not re.search("/(design|lab)/", page)])
def test_commands_in_blocks_parse_and_name_only_existing_things(page):
    for words in commands(page):
        check(words)


def test_flags_settings_and_targets_in_sentences_exist():
    flags = {f"--{flag.name}" for name in cli.COMMANDS for flag in collect_flags(name)}
    for path in [*ROOT.glob("docs/examples/*.py"), *ROOT.glob("scripts/*.py")]:
        flags |= {*re.findall(r'"(--[\w-]+)"', path.read_text("utf-8"))}
    for page, text in PAGES.items() - {("CHANGELOG.md", PAGES["CHANGELOG.md"])}:
        for extras in re.findall(r"bigbird[-_]ja[-\w.]*\[([\w,]+)\]", text):
            assert {*extras.split(",")} <= EXTRAS, f"{page}: {extras}"
        for code in re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", text)):
            command, _, rest = code.removeprefix("bigbird-ja ").partition(" ")
            if command in cli.COMMANDS:
                own = {flag.name for flag in collect_flags(command)}
                for flag in re.findall(r"(?<!\S)--(?:no)?([\w-]+)", rest):
                    assert flag.replace("-", "_") in own | {f"no{flag}"}, f"{page}: {code}"
            elif re.match("--(?!xla_)[a-z]", code):  # This project does not declare XLA's flags.
                flag = re.match(r"-[\w-]+", code)[0]
                assert flag in flags or flag.replace("--no", "--", 1) in flags, f"{page}: {code}"


def collect_flags(name):
    return command_flags.own_flags(command_flags.collect_flags(cli.load_command(name)))
