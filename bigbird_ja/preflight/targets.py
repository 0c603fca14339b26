"""What a program is compiled for: one device of a chip, or a whole slice."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbird_ja.accelerators.hardware import CHIPS, MEGACORE, Chip
from bigbird_ja.preflight.compile_child import Place
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import nearest

_NAME = re.compile(r"(\w+):(\d+(?:x\d+){1,2})")


@dataclass(frozen=True)
class Target:
    """What one compilation is for."""

    name: str  # "v3", "v5e:2x4"
    chip: Chip  # one device
    place: Place
    devices: int

    @property
    def is_slice(self) -> bool:
        return self.name != self.chip.name


def of_chip(name: str) -> Target:
    """One device of a chip.

    Raises:
        BadInput: there is no such chip; the message names the nearest.
    """
    if name not in CHIPS:
        raise BadInput(f"--chip {name}{nearest(name, CHIPS)}: one of {', '.join(CHIPS)}")
    return Target(name, CHIPS[name], Place(CHIPS[name].topology), 1)


def of_topologies(
    names: Sequence[str], count_devices: Callable[[Sequence[Place]], Sequence[int]]
) -> list[Target]:
    """Whole slices.

    Args:
        names: such as "v5e:2x4".
        count_devices: see `compile.count_devices`.

    Raises:
        BadInput: a name of another form, or a slice that this compiler does not know.
    """
    if not names:
        return []
    places = [_place(name) for name in names]
    counts = count_devices([Place(chip.topology) for chip in CHIPS.values()])
    known = [kind for kind, count in zip(CHIPS, counts, strict=True) if count]
    targets = []
    for name, place, count in zip(names, places, count_devices(places), strict=True):
        kind = name.partition(":")[0]
        if kind not in known:
            raise BadInput(
                f"--topology {name}: the installed libtpu does not know {kind}, only"
                f" {', '.join(known)}: use a newer libtpu, in an environment of its own"
            )
        if not count:
            raise BadInput(f"--topology {name}: libtpu knows no such slice; {_example(kind)}")
        targets.append(Target(name, MEGACORE.get(kind, CHIPS[kind]), place, count))
    return targets


def _place(name: str) -> Place:
    match = _NAME.fullmatch(name)
    kind = match[1] if match else re.split("[:-]", name)[0]
    if kind not in CHIPS:
        raise BadInput(
            f"--topology {name}{nearest(kind, CHIPS)}: CHIP:SHAPE, such as v5e:2x4; chips:"
            f" {', '.join(CHIPS)}"
        )
    if not match:
        raise BadInput(f"--topology {name}: CHIP:SHAPE; {_example(kind)}")
    prefix = CHIPS[kind].topology.partition(":")[0]
    is_one = all(size == "1" for size in match[2].split("x"))
    return Place(f"{prefix}:{match[2]}", is_one_chip=is_one, is_megacore=kind in MEGACORE)


def _example(kind: str) -> str:
    """Three slices of a kind that Google rents."""
    flat = CHIPS[kind].topology.count("x") == 1
    shapes = ("2x2", "4x4", "8x8") if flat else ("2x2x1", "2x2x2", "2x2x4")
    return f"such as {', '.join(f'{kind}:{shape}' for shape in shapes)}"
