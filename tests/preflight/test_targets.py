"""Names of slices, and what is said of those that there are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bigbird_ja.accelerators.hardware import CHIPS, MEGACORE
from bigbird_ja.preflight import targets
from bigbird_ja.preflight.compile_child import Place
from bigbird_ja.process.errors import BadInput

KNOWN = {"v3:2x2": 8, "v4:2x2x1": 4, "v5e:2x2": 4, "v5e:2x4": 8, "v5e:1x1": 1, "v2:2x2": 8,
         "v5p:2x2x1": 4, "v6e:2x2": 4}  # fmt: skip


def _count(places: Sequence[Place]) -> list[int]:
    return [KNOWN.get(place.topology, 0) for place in places]


def test_slices_by_name() -> None:
    result = targets.of_topologies(["v5e:2x4", "v5e:1x1", "v4:2x2x1"], _count)
    assert [target.devices for target in result] == [8, 1, 4]
    assert [target.chip for target in result] == [CHIPS["v5e"], CHIPS["v5e"], MEGACORE["v4"]]
    assert result[1].place == Place("v5e:1x1", is_one_chip=True)
    assert result[2].place.options == {"chip_config_name": "megacore"}
    assert all(target.is_slice for target in result)
    assert not targets.of_chip("v5e").is_slice
    assert targets.of_topologies([], _count) == []


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("2x4", "chips: v2, v3"),
        ("v5e", "such as v5e:2x2, .*v5e:8x8"),
        ("v5e:2-4", "such as v5e:2x2"),
        ("v7x:2x2x1", "does not know v7x, only v2, v3, v4, v5e, v5p, v6e: use a newer libtpu"),
    ],
)
def test_a_slice_that_there_is_not(name: str, printed: str) -> None:
    with pytest.raises(BadInput, match=printed) as caught:
        targets.of_topologies([name], _count)
    assert str(caught.value).startswith(f"--topology {name}")
    assert "\n" not in str(caught.value)
