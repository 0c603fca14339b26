"""Text of `--help`: a command's docstring, an example, and its flags."""

from __future__ import annotations

import textwrap
from typing import Any

from absl import flags

from bigbird_ja.cli.command_flags import collect_flags, declared, format_need, own_flags
from bigbird_ja.settings.variants import OPTIONS

_FORMS = {int: "INT", float: "FLOAT", str: "TEXT"}
_COMMON = ("config", "set", "json", "help")


def format_help(command: Any, name: str) -> str:
    """Format the text of `bigbird-ja COMMAND --help`.

    Args:
        command: module of the command.
        name: name of the command.
    """
    about = textwrap.dedent(command.__doc__ or "").strip().split("\n\n")
    about[0] = f"bigbird-ja {name}: {about[0]}"
    paragraphs = [text if text.startswith(" ") else textwrap.fill(text, 79) for text in about]
    lines = ["\n\n".join(paragraphs), "", "Example:", f"  {command.EXAMPLE}"]
    for heading, listed in group_flags(collect_flags(command)).items():
        lines += ["", f"{heading}:"]
        for flag in listed:
            default = format_default(flag)
            shown = default if declared(flag).required else f"default: {default}"
            text = format_meaning(flag) + (f" ({shown})" if default != "off" else "")
            lines.append(f"  {format_form(flag)}")
            lines += textwrap.wrap(text, 79, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def group_flags(args: flags.FlagValues) -> dict[str, list[flags.Flag]]:
    """Group the flags by their headings in `--help`, required flags first."""
    result: dict[str, list[flags.Flag]] = {"Required": [], "Flags": []}
    last: dict[str, list[flags.Flag]] = {"Settings": [], "In most commands": []}
    for flag in own_flags(args):
        option = declared(flag)
        if flag.name in _COMMON or option.setting:
            last["Settings" if option.setting else "In most commands"].append(flag)
        else:
            heading = "Required" if option.required else option.group or "Flags"
            result.setdefault(heading, []).append(flag)
    return {heading: listed for heading, listed in {**result, **last}.items() if listed}


def format_form(flag: flags.Flag) -> str:
    """Format a flag with its placeholder, such as `--name INT`."""
    option = declared(flag)
    if option.kind is bool:
        return f"--{flag.name}" if flag.default is False else f"--[no_]{flag.name}"
    return f"--{flag.name} {option.form or '|'.join(option.choices) or _FORMS[option.kind]}"


def format_meaning(flag: flags.Flag) -> str:
    """Format a flag's description, unit, range, setting and conditions."""
    option = declared(flag)
    notes = [
        # The choices already follow the flag's name, so only the unit is added.
        option.unit if option.choices else option.values,
        f"sets {option.setting}" if option.setting else "",
        f"with {format_need(option.needs)}" if option.needs else "",
        "repeatable" if option.many and "repeatable" not in option.meaning else "",
    ]
    shown = "; ".join(filter(None, notes))
    return option.meaning + (f" [{shown}]" if shown else "")


def format_default(flag: flags.Flag) -> str:
    """Format a flag's default, or `required`."""
    option = declared(flag)
    if option.required:
        return f"required except with --{option.unless}" if option.unless else "required"
    if option.default == []:
        return option.none or "none"
    shown = OPTIONS[option.setting] if option.setting else option
    if isinstance(shown.default, bool):
        return "on" if shown.default else "off"
    return shown.default_text if shown.default != "" else '""'
