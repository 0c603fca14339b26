"""Write the parts of the pages that are generated from the code (`make docs`).

The list in docs/commands/README.md is generated from the commands, the presets in docs/settings.md
from their files, and the address in both READMEs from pyproject.toml. `site_pages` generates pages
that only the site contains: tables of all settings, and a page for each command with its --help.

With --check nothing is written. The exit status is 1 if a page is out of date.
"""

import re
import sys
from pathlib import Path

from absl import flags

from bigbird_ja import cli
from bigbird_ja.cli import command_flags, command_help
from bigbird_ja.settings.config_file import get_preset_path, list_presets
from bigbird_ja.settings.data_facts import DATA_KEYS
from bigbird_ja.settings.option import Option
from bigbird_ja.settings.schema import Section
from bigbird_ja.settings.variants import OPTIONS, VARIANTS
from testkit import ROOT

FOLDER, SETTINGS = "docs/commands", "docs/settings.md"
COMMON = "In most commands"  # heading of flags that docs/commands/README.md lists for all commands


def pages() -> dict[str, str]:
    """Return the complete text of each page that contains generated parts, by path."""
    readmes = {name: _readme(name) for name in ("README.md", "README.ja.md")}
    text = (ROOT / SETTINGS).read_text("utf-8").partition("\n## ")[0]
    return {f"{FOLDER}/README.md": _index(), SETTINGS: f"{text}\n{_presets()}"} | readmes


def site_pages() -> dict[str, str]:
    """Return the content of the pages that only the site contains, by path."""
    found = {f"{FOLDER}/{name}.md": _page(name) for name in cli.COMMANDS}
    return found | {SETTINGS: f"{pages()[SETTINGS]}\n{_settings()}"}


def _readme(name: str) -> str:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    address = re.findall(r'(?m)^Repository = "(.*)"$', project)[0]
    return re.sub("(?m)^REPOSITORY=.*$", f"REPOSITORY={address}", (ROOT / name).read_text("utf-8"))


def _index() -> str:
    rows = "\n".join(f"- `{name}`: {what}" for name, what in cli.COMMANDS.items())
    common = command_help.group_flags(command_flags.collect_flags(cli.load_command("sample")))[
        COMMON
    ]
    return (
        "# Commands\n\nIn the order of use. `bigbird-ja COMMAND --help` explains a command and its"
        " flags, and `make site` builds a page for each.\n\n"
        f"{rows}\n\n## {COMMON}\n\n{_flag_list(common)}\n\n"
        "Exit statuses are in [troubleshooting](../troubleshooting.md).\n"
    )


def _page(name: str) -> str:
    command = cli.load_command(name)
    summary, _, rest = (command.__doc__ or "").strip().partition("\n")
    sections = command_help.group_flags(command_flags.collect_flags(command))
    sections.pop(COMMON, None)
    told = _paragraphs(rest)
    if not any(part.startswith("```") for part in told):
        told.append(f"```bash\n{command.EXAMPLE}\n```")
    listed = [_section(heading, flags) for heading, flags in sections.items()]
    return "\n\n".join([f"# bigbird-ja {name}", summary, *filter(None, told), *listed]) + "\n"


def _paragraphs(text: str) -> list[str]:
    """Convert a docstring to paragraphs of Markdown. Indented paragraphs become command lines."""
    result = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.splitlines()
        if lines and all(line.startswith("  ") for line in lines):
            result.append("```bash\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            result.append("\n".join(line.strip() for line in lines))
    return result


def _section(heading: str, listed: list[flags.Flag]) -> str:
    """Format a list of flags.

    Settings are listed by name only, since docs/settings.md explains them.
    """
    if heading != "Settings":
        return f"## {heading}\n\n{_flag_list(listed)}"
    names = ", ".join(
        f"`{command_help.format_form(one)}` ({command_flags.declared(one).setting})"
        if command_flags.declared(one).setting.partition(".")[2] != one.name
        else f"`{command_help.format_form(one)}`"
        for one in listed
    )
    return f"## Settings\n\nFlags of [settings](../settings.md): {names}."


def _flag_list(listed: list[flags.Flag]) -> str:
    rows = []
    for flag in listed:
        default = command_help.format_default(flag)
        ending = "" if default in ("off", "none", "required") else f" ({default})"
        # Escape brackets, which would begin a link to a name of the Python interface in mkdocs.
        meaning = command_help.format_meaning(flag).replace("[", "\\[")
        rows.append(f"- `{command_help.format_form(flag)}`: {meaning}{ending}")
    return "\n".join(rows)


def _settings() -> str:
    """Format a table of settings for each section of the config."""
    parts = [
        "*From the data set*: a run reads these from the manifest and refuses a value that"
        " disagrees. *May change*: a resumed run accepts another value. *May change with a note*:"
        " it accepts one from its command line and logs an event. Everything else in `model`,"
        " `data` and `training` stays as the run began. Many settings are also flags of the same"
        " name.\n"
    ]
    for name, variants in VARIANTS.items():
        bases = variants[0].__mro__
        about = " ".join((bases[bases.index(Section) - 1].__doc__ or "").split())
        listed = [option for option in OPTIONS.values() if option.section == name]
        rows = "\n".join(_row(option) for option in listed)
        parts.append(
            f"## {name}\n\n{about}{_changes(name, listed)}\n\n"
            f"| setting | meaning | values (default) |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def _presets() -> str:
    """Format a table of the presets, with purpose and machine from the comments of each file."""
    rows = []
    for name in list_presets():
        text = Path(get_preset_path(name)).read_text("utf-8")
        found = re.findall(r"(?m)^# (For|Hardware): +(.*(?:\n#  .*)*)", text)
        parts = {key: " ".join(re.sub(r"\n# +", " ", part).split()) for key, part in found}
        rows.append(f"| `{name}` | {parts['For']} | {parts['Hardware']} |")
    body = "\n".join(rows)
    return f"## Presets\n\n| `--config` | for | machine |\n|---|---|---|\n{body}\n"


def _changes(section: str, listed: list[Option]) -> str:
    """List the settings that the data set determines, and those that a resumed run may change."""
    names = {
        kind: [f"`{o.name}`" for o in listed if o.change == kind] for kind in ("free", "logged")
    }
    facts = [f"`{o.name}`" for o in listed if o.key in DATA_KEYS]
    if facts:
        return f" *From the data set*: {', '.join(facts)}."
    if section not in ("model", "training", "checkpoints", "tpu"):
        return ""
    if len(names["free"]) == len(listed):
        return " All may change."
    others = [f"`{o.name}`" for o in listed if o.change not in names]
    noted = f" *May change with a note*: all but {', '.join(others)}." if names["logged"] else ""
    return f" *May change*: {', '.join(names['free'])}.{noted}"


def _row(option: Option) -> str:
    values = option.values or {"bool": "true, false", "str": "text"}[option.kind.__name__]
    conditions = [f"{key}={'|'.join(values)}" for key, values in option.only_with.items()]
    notes = f" *only with `{' & '.join(conditions)}`*" if conditions else ""
    meaning = f"{option.meaning}{notes}"
    cells = (f"`{option.name}`", meaning, f"{values} ({option.default_text})")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write the pages, or only compare them with --check.

    Returns:
        The exit status.
    """
    is_check = "--check" in sys.argv[1:]
    wanted = pages()
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
    sys.exit(main())
