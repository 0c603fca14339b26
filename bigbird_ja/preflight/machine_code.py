"""What libtpu is told so that it lists its final code, and what is read from the listings.

libtpu also analyses its code itself (`--xla_jf_dump_static_llo_profile_to`), but ends its process
at the first op that it cannot analyse; in a train step there always is one. The listings it writes
of every op. Tried with `_SINCE` and later, for the chips of `HAS_LISTINGS`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bigbird_ja.preflight.bundles import Runs, runs

HAS_LISTINGS: frozenset[str] = frozenset({"v5e", "v5p", "v6e", "v7x"})
_SINCE = (0, 0, 42)
_MOST_UNKNOWN = 0.05
_BUNDLES, _UTILISATION = "final_bundles", "final_hlo-static-per-bundle-utilization"
_FILE = re.compile(rf"\d+-(.+)-\d+-{_BUNDLES}\.txt")


@dataclass(frozen=True)
class Code:
    """Of one op. Ops that are alike share their code: the compiler makes and lists it once."""

    cycles: float  # of one run
    # Unit to the share of its slots that are used while the op runs.
    slots: dict[str, float] = field(default_factory=dict)
    unknown_share: float = 0.0  # of `bundles.Runs`

    @property
    def is_counted(self) -> bool:
        """Whether `cycles` can be told. What copies the rest of an uneven tile has short loops of
        unknown length; those of a scatter have most of its bundles."""
        return self.unknown_share <= _MOST_UNKNOWN


def is_there(chip: str, libtpu: str) -> bool:
    """Whether this version of libtpu lists its code for a chip.

    Args:
        chip: of `chips.CHIPS`.
        libtpu: a version, such as "0.0.52".
    """
    version = tuple(int(number) for number in re.findall(r"\d+", libtpu)[:3])
    return chip in HAS_LISTINGS and version >= _SINCE


def flags(directory: str) -> str:
    """For LIBTPU_INIT_ARGS.

    Args:
        directory: where the listings go.
    """
    return (
        f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        f" --xla_jf_dump_llo_pass_label_regex=^({_BUNDLES}|{_UTILISATION})$"
    )


def collect(directory: str) -> dict[str, Code]:
    """Reads all listings: op's name to its code."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), f"*-{_BUNDLES}.txt"))):
        match = _FILE.fullmatch(os.path.basename(path))
        if not match or match[1].endswith("schedule-analysis"):
            continue
        with open(path, encoding="utf-8") as stream:
            counted = runs(stream.read())
        found[match[1]] = Code(
            counted.cycles, _fullness(directory, match[1], counted), counted.unknown_share
        )
    return found


def _fullness(directory: str, name: str, counted: Runs) -> dict[str, float]:
    paths = glob.glob(os.path.join(glob.escape(directory), f"*-{name}-*-{_UTILISATION}.txt"))
    for path in paths:
        if re.fullmatch(rf"\d+-{re.escape(name)}-\d+-{_UTILISATION}\.txt", os.path.basename(path)):
            with open(path, encoding="utf-8") as stream:
                return fullness(stream.read(), counted.times)
    return {}


def fullness(text: str, times: Sequence[float]) -> dict[str, float]:
    """How much of each unit's slots is used, from 0 to 1; {} where the bundles are others.

    Args:
        text: a line that names the units, one with their slots in a bundle, then one line for each
            bundle.
        times: how often each bundle runs.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    total = sum(times)
    if len(lines) != len(times) + 2 or not total:
        return {}
    names = [name.strip() for name in lines[0].split(",")]
    capacity = [int(number) for number in lines[1].split()]
    used = [0.0] * len(names)
    for line, often in zip(lines[2:], times, strict=True):
        for place, slots in enumerate(line.split()):
            if slots != "0":
                used[place] += int(slots) * often
    return {
        name: sum_ / (slots * total)
        for name, sum_, slots in zip(names, used, capacity, strict=True)
    }
