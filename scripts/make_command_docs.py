"""`make docs`: writes docs/commands/*.md from the commands' own flags, so that they cannot drift,
and the repository's address, which stands in pyproject.toml, into both READMEs.

With --check nothing is written; the exit status is 1 if a page is out of date.
"""

import re
import sys
from pathlib import Path

from absl import flags

from bigbird_ja import cli
from bigbird_ja.cli import command_flags

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "docs/commands"
COMMON = "In most commands"  # flags that the index lists once


def pages() -> dict[str, str]:
    """Return path -> content: one page per command, an index, and the READMEs."""
    result = {f"{FOLDER}/README.md": _index()}
    for name in cli.COMMANDS:
        result[f"{FOLDER}/{name}.md"] = _page(name)
    return result | {name: _readme(name) for name in ("README.md", "README.ja.md")}


def _readme(name: str) -> str:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    address = re.findall(r'(?m)^Repository = "(.*)"$', project)[0]
    return re.sub("(?m)^REPOSITORY=.*$", f"REPOSITORY={address}", (ROOT / name).read_text("utf-8"))


def _index() -> str:
    rows = "\n".join(f"- [`{n}`]({n}.md): {what}" for n, what in cli.COMMANDS.items())
    common = command_flags.sections(command_flags.flags_of(cli.load_command("sample")))[COMMON]
    return (
        "# Commands\n\nIn the order of use; a default stands in brackets. `make docs` writes these"
        " pages from the commands' flags.\n\n"
        f"{rows}\n\n## {COMMON}\n\n{_flag_list(common)}\n\n"
        "Exit statuses are in [troubleshooting](../troubleshooting.md).\n"
    )


def _page(name: str) -> str:
    command = cli.load_command(name)
    summary, _, rest = (command.__doc__ or "").strip().partition("\n")
    sections = command_flags.sections(command_flags.flags_of(command))
    sections.pop(COMMON, None)
    told = _paragraphs(rest)
    if not any(part.startswith("```") for part in told):
        told.append(f"```bash\n{command.EXAMPLE}\n```")
    listed = [_section(heading, flags) for heading, flags in sections.items()]
    return "\n\n".join([f"# bigbird-ja {name}", summary, *filter(None, told), *listed]) + "\n"


def _paragraphs(text: str) -> list[str]:
    """A docstring as Markdown: what is indented is a command line."""
    result = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.splitlines()
        if lines and all(line.startswith("  ") for line in lines):
            result.append("```bash\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            result.append("\n".join(line.strip() for line in lines))
    return result


def _section(heading: str, listed: list[flags.Flag]) -> str:
    """A list of flags; those that set a setting are named alone, as docs/settings.md has them."""
    if heading != "Settings":
        return f"## {heading}\n\n{_flag_list(listed)}"
    names = ", ".join(
        f"`{command_flags.form(one)}` ({command_flags.declared(one).setting})"
        if command_flags.declared(one).setting.partition(".")[2] != one.name
        else f"`{command_flags.form(one)}`"
        for one in listed
    )
    return f"## Settings\n\nFlags of [settings](../settings.md): {names}."


def _flag_list(listed: list[flags.Flag]) -> str:
    rows = []
    for flag in listed:
        default = command_flags.default_text(flag)
        ending = "" if default in ("off", "none", "required") else f" ({default})"
        rows.append(f"- `{command_flags.form(flag)}`: {command_flags.meaning(flag)}{ending}")
    return "\n".join(rows)


def write(wanted: dict[str, str]) -> int:
    """Write pages, or with --check say which are out of date and return 1."""
    is_check = "--check" in sys.argv[1:]
    stale = [
        name
        for name, text in wanted.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text("utf-8") != text
    ]
    for name in stale:
        if not is_check:
            (ROOT / name).write_text(wanted[name], "utf-8")
        print(f"{name}: {'out of date' if is_check else 'written'}")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(write(pages()))
