"""Names what a program is compiled for: one device of a chip, or a whole slice."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bigbird_ja.accelerators import CHIPS, MEGACORE, Chip
from bigbird_ja.preflight.compile_child import Place
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.option import nearest

_FORM = "CHIP:SHAPE, such as v5e:2x4 or v6e:4x4, or v4:2x2x1 (v4, v5p and v7x: three numbers)"
_NAME = re.compile(r"(\w+):(\d+(?:x\d+){1,2})")


@dataclass(frozen=True)
class Target:
    """Describes what one compilation is for."""

    name: str  # "v3", "v5e:2x4"
    chip: Chip  # one device
    place: Place
    devices: int

    @property
    def is_slice(self) -> bool:
        """Tell a whole slice from one device."""
        return self.name != self.chip.name


def of_chip(name: str) -> Target:
    """Return one device of a chip.

    Raises:
        BadInput: there is no such chip; the message names the nearest.
    """
    if name not in CHIPS:
        raise BadInput(f"--chip {name}{nearest(name, CHIPS)}: one of {', '.join(CHIPS)}")
    return Target(name, CHIPS[name], Place(CHIPS[name].topology), 1)


def of_topologies(
    names: Sequence[str], count_devices: Callable[[Sequence[Place]], Sequence[int]]
) -> list[Target]:
    """Return whole slices.

    Args:
        names: such as "v5e:2x4".
        count_devices: see `compile.count_devices`.

    Raises:
        BadInput: a name of another form, or a slice that this compiler does not know.
    """
    places = [_place(name) for name in names]
    counts = count_devices(places) if places else []
    targets = []
    for name, place, count in zip(names, places, counts, strict=True):
        kind = name.partition(":")[0]
        if not count:
            raise BadInput(
                f"--topology {name}: the installed libtpu knows no such slice: {_FORM}; for a newer"
                " chip use a newer libtpu, in an environment of its own"
            )
        targets.append(Target(name, MEGACORE.get(kind, CHIPS[kind]), place, count))
    return targets


def _place(name: str) -> Place:
    match = _NAME.fullmatch(name)
    kind = match[1] if match else re.split("[:-]", name)[0]
    if not match or kind not in CHIPS:
        near = "" if kind in CHIPS else nearest(kind, CHIPS)
        raise BadInput(f"--topology {name}{near}: {_FORM}; chips: {', '.join(CHIPS)}")
    prefix = CHIPS[kind].topology.partition(":")[0]
    is_one = all(size == "1" for size in match[2].split("x"))
    return Place(f"{prefix}:{match[2]}", is_one_chip=is_one, is_megacore=kind in MEGACORE)
