"""Names and sizes of what can be rented."""

from __future__ import annotations

import pytest

from bigbird_ja.accelerators import hardware
from bigbird_ja.process.errors import BadInput


@pytest.mark.parametrize(
    ("name", "known_as", "chips", "units", "devices", "hosts"),
    [
        ("v2-8", "v2-8", 4, 8, 8, 1),
        ("v3-8", "v3-8", 4, 8, 8, 1),
        ("v4-8", "v4-8", 4, 8, 4, 1),  # two cores are one device
        ("v5e-1", "v5e-1", 1, 1, 1, 1),
        ("v5litepod-8", "v5e-8", 8, 8, 8, 1),
        ("v5e-16", "v5e-16", 16, 16, 16, 4),
        ("v5p-8", "v5p-8", 4, 4, 4, 1),
        ("v6e-32", "v6e-32", 32, 32, 32, 8),
        ("tpu7x-8", "v7x-8", 4, 8, 8, 1),
    ],
)
def test_sizes(name: str, known_as: str, chips: int, units: int, devices: int, hosts: int) -> None:
    found = hardware.find(name)
    assert found.name == known_as
    assert (found.chips, found.units, found.devices, found.hosts) == (chips, units, devices, hosts)


def test_peaks_are_of_the_whole_machine() -> None:
    assert hardware.find("v3-8").peak_flops == 8 * 61.5e12
    assert hardware.find("v4-8").peak_flops == 4 * 275e12
    assert hardware.find("v6e-8").peak_flops == 8 * 918e12
    assert hardware.find("A100").peak_flops == 312e12


@pytest.mark.parametrize(
    ("topology", "name"),
    [
        ("v5e:2x4", "v5e-8"), ("v5e:4x8", "v5e-32"), ("v4:2x2x1", "v4-8"), ("v3:2x2", "v3-8"),
        ("v5p:2x2x2", "v5p-16"), ("v7x:2x2x1", "v7x-8"), ("v6e:1x1", "v6e-1"),
    ],
)  # fmt: skip
def test_topologies_are_machines(topology: str, name: str) -> None:
    assert hardware.of_topology(topology) == hardware.find(name)


@pytest.mark.parametrize("name", ["v3", "T4", "v9-8", "v5e-7", "v3-7", "v3-4", "v5e-0", "v5e-24"])
def test_what_is_no_machine_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}'"):
        hardware.find(name)


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v5e:8", "v9:2x2", "v5e:0x4", "v5e:2x4x2x2"])
def test_what_is_no_topology_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="no topology"):
        hardware.of_topology(name)


def test_launch_takes_the_name_that_is_printed() -> None:
    assert hardware.launch_type(hardware.find("v5e-8")) == "v5litepod-8"
    assert hardware.launch_type(hardware.find("v6e-8")) == "v6e-8"
