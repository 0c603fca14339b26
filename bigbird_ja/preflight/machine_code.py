"""Flags that make libtpu list its final code, and reading these listings.

libtpu also analyses its code itself (`--xla_jf_dump_static_llo_profile_to`), but that ends its
process at the first op that it cannot analyse; in a train step there always is one. It lists every
op's code. Tried with `_SINCE` and later, for the chips of `HAS_LISTINGS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from bigbird_ja.preflight.bundles import runs

HAS_LISTINGS: frozenset[str] = frozenset({"v5e", "v5p", "v6e", "v7x"})
_SINCE = (0, 0, 42)
_MOST_UNKNOWN = 0.05
_BUNDLES, _UTILISATION = "final_bundles", "final_hlo-static-per-bundle-utilization"
_FILE = re.compile(rf"\d+-(.+)-\d+-({_BUNDLES}|{_UTILISATION})\.txt")


@dataclass(frozen=True)
class Code:
    """Of one op. Identical ops share their code: the compiler makes and lists it once."""

    cycles: float  # of one run
    # Unit to the share of its slots that are used while the op runs.
    slots: dict[str, float] = field(default_factory=dict)
    unknown_share: float = 0.0  # of `bundles.Runs`

    @property
    def is_counted(self) -> bool:
        """Whether `cycles` is known. Copies of an uneven tile's end have short loops of unknown
        trip count; in a scatter these have most of the bundles."""
        return self.unknown_share <= _MOST_UNKNOWN


def is_available(chip: str, libtpu: str) -> bool:
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
    texts: dict[str, dict[str, str]] = {_BUNDLES: {}, _UTILISATION: {}}
    for file in sorted(os.listdir(directory)):
        if match := _FILE.fullmatch(file):
            with open(os.path.join(directory, file), encoding="utf-8") as stream:
                texts[match[2]][match[1]] = stream.read()
    codes = {}
    for name, text in texts[_BUNDLES].items():
        counted = runs(text)
        slots = fullness(texts[_UTILISATION].get(name, ""), counted.times)
        codes[name] = Code(counted.cycles, slots, counted.unknown_share)
    return codes


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
