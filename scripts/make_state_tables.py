"""Writes the supervisor's state machine into docs/design/launch.md, from its own rules.

python -m scripts.make_state_tables
"""

from __future__ import annotations

from bigbird_ja.launch.run_state import Phase
from bigbird_ja.launch.supervisor import TABLES

PAGE = "docs/design/launch.md"
BEGIN, END = "<!-- from the rules: scripts/make_state_tables -->", "<!-- end of the rules -->"


def tables() -> str:
    """One table of Markdown per phase."""
    parts = []
    for phase, rules in TABLES.items():
        if phase is Phase.ENDED:
            continue
        rows = [
            f"**`{phase.value}`**",
            "",
            "| what is seen | act | then | because |",
            "| --- " * 4 + "|",
        ]
        for rule in rules:
            to = ", ".join(f"`{one.value}`" for one in rule.to) or "stays"
            rows.append(f"| {rule.seen} | {rule.does} | {to} | {rule.why} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def page(text: str) -> str:
    """The page with the tables of today.

    Raises:
        ValueError: it has no place for them.
    """
    head, found, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not found or not end:
        raise ValueError(f"{PAGE}: {BEGIN} and {END} are missing")
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


def main() -> None:
    """See the module."""
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(page(text))


if __name__ == "__main__":
    main()
