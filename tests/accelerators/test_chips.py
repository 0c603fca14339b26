"""Names and sizes of TPU slices, and predicted times of transfers over a slice's links."""

import pytest

from bigbird_ja.accelerators.chips import CHIPS, find, parse_topology, predict_link_seconds
from bigbird_ja.accelerators.measured import LINKS
from bigbird_ja.errors import BadInput


@pytest.mark.parametrize(
    ("name", "known_as", "topology", "chips", "units", "devices", "hosts", "peak_flops"),
    [
        ("v2-8", "v2-8", "v2:2x2", 4, 8, 8, 1, 8 * 22.5e12),
        ("v3-8", "v3-8", "v3:2x2", 4, 8, 8, 1, 8 * 61.5e12),
        ("v4-8", "v4-8", "v4:2x2x1", 4, 8, 4, 1, 4 * 275e12),  # Two v4 cores are one device.
        ("v5e-1", "v5e-1", "v5e:1x1", 1, 1, 1, 1, 197e12),
        ("v5litepod-8", "v5e-8", "v5e:2x4", 8, 8, 8, 1, 8 * 197e12),
        ("v5e-16", "v5e-16", "v5e:4x4", 16, 16, 16, 4, 16 * 197e12),
        ("v5p-8", "v5p-8", "v5p:2x2x1", 4, 4, 4, 1, 4 * 459e12),
        ("v6e-32", "v6e-32", "v6e:4x8", 32, 32, 32, 8, 32 * 918e12),
        ("tpu7x-8", "v7x-8", "v7x:2x2x1", 4, 8, 8, 1, 8 * 1153.5e12),
    ],
)
def test_names_topologies_and_sizes(
    name, known_as, topology, chips, units, devices, hosts, peak_flops
):
    machine = find(name)
    assert machine == parse_topology(topology)
    assert (machine.name, machine.chips, machine.units) == (known_as, chips, units)
    assert (machine.devices, machine.hosts) == (devices, hosts)
    assert machine.peak_flops == peak_flops
    launched_as = known_as.replace("v5e", "v5litepod")
    assert machine.launch_type == launched_as


@pytest.mark.parametrize("name", ["v3", "A100", "v9-8", "v5e-7", "v3-7", "v3-4", "v5e-0", "v5e-24"])
def test_unknown_machines_are_refused(name):
    with pytest.raises(BadInput, match=f"'{name}'"):
        find(name)


@pytest.mark.parametrize(
    ("topology", "links", "hops"),
    [("v6e:2x4", 2, 6), ("v6e:16x16", 4, 16), ("v5p:2x2x1", 2, 4), ("v5p:4x4x4", 6, 6)],
)
def test_collectives_take_their_hops_and_their_bytes_over_the_links_of_a_corner(
    topology, links, hops
):
    chip = CHIPS[topology[:3]]
    hop, rate = LINKS[chip.name]
    seconds = predict_link_seconds(chip, topology, 1e9, 10)
    assert seconds == pytest.approx(10 * hops * hop + 1e9 / (links * rate))


def test_links_without_a_timing_count_by_their_specified_rate():
    assert predict_link_seconds(CHIPS["v3"], "v3:2x2", 82e9, 10) == 1.0
