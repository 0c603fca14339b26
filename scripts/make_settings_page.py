"""`make docs`: writes docs/settings.md, the reference of all settings, from their declarations.

With --check nothing is written; the exit status is 1 if the page is out of date.
"""

import sys

import msgspec

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from bigbird_ja.settings import DATA_KEYS
from bigbird_ja.settings.option import Option
from bigbird_ja.settings.schema import OPTIONS, Config
from scripts.make_command_docs import write

_INTRODUCTION = """# Settings

Every setting, by section. A value comes from (the last wins) the default; `--config` (a preset's
name such as `base-4096`, or a YAML file of these sections); `--set section.key=value` (repeatable);
a flag of the command. `bigbird-ja config` prints the result and where each value came from, as a
file for `--config`. A setting on the command line that the command does not use is refused; a file
may hold all sections.

*In a run, the data set's*: read from its manifest; a value that disagrees is refused.
*May change*: a resumed run accepts another value. *May be set anew*: it accepts one from its
command line and logs that as an event. All else in `model`, `data` and `training` stays as the run
began. Many settings are flags of the same name ([commands](commands/README.md)).
"""


def page() -> str:
    """The content of docs/settings.md."""
    flags = _flags()
    parts = [_INTRODUCTION]
    for name, section in msgspec.structs.asdict(Config()).items():
        about = " ".join((type(section).__doc__ or "").split())
        listed = [option for option in OPTIONS.values() if option.section == name]
        rows = "\n".join(_row(option, flags) for option in listed)
        parts.append(
            f"## {name}\n\n{about}{_changes(name, listed)}\n\n"
            f"| setting | meaning | values (default) |\n|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def _changes(section: str, listed: list[Option]) -> str:
    """Say which settings of a section the data set decides, or a resumed run may change."""
    names = {
        kind: [f"`{o.name}`" for o in listed if o.change == kind] for kind in ("free", "logged")
    }
    facts = [f"`{o.name}`" for o in listed if o.key in DATA_KEYS]
    if facts:
        return f" *In a run, the data set's*: {', '.join(facts)}."
    if section not in ("model", "training", "checkpoints", "tpu"):
        return ""
    if len(names["free"]) == len(listed):
        return " All may change."
    others = [f"`{o.name}`" for o in listed if o.change not in names]
    anew = f" *May be set anew*: all others but {', '.join(others)}." if names["logged"] else ""
    return f" *May change*: {', '.join(names['free'])}.{anew}"


def _row(option: Option, flags: dict[str, list[str]]) -> str:
    values = option.allowed or {"bool": "true, false", "str": "text"}[option.kind.__name__]
    if option.kind in (int, float) and not option.choices:
        values = f"{option.unit}, {values}" if option.unit else values
    notes = _notes(option, flags)
    meaning = f"{option.meaning} *{notes}*" if notes else option.meaning
    cells = (f"`{option.name}`", meaning, f"{values} ({option.default_text})")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _notes(option: Option, flags: dict[str, list[str]]) -> str:
    notes = []
    if option.only_with:
        notes.append(f"only with `{option.only_with}`")
    if option.needs_flag:
        notes.append(f"only with `--{option.needs_flag.replace('=', ' ')}`")
    notes += flags.get(option.key, [])
    return "; ".join(notes)


def _flags() -> dict[str, list[str]]:
    """Setting -> the flags that set it, in words."""
    result: dict[str, dict[str, list[str]]] = {}
    for name in cli.COMMANDS:
        for flag in command_flags.own_flags(command_flags.flags_of(cli.load_command(name))):
            setting = command_flags.declared(flag).setting
            if setting:
                result.setdefault(setting, {}).setdefault(flag.name, []).append(f"`{name}`")
    return {
        setting: [
            f"`--{flag}` of {', '.join(names)}"
            for flag, names in flags.items()
            if flag != setting.partition(".")[2]
        ]
        for setting, flags in result.items()
    }


if __name__ == "__main__":
    sys.exit(write({"docs/settings.md": page()}))
