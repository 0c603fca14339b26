"""Who reads and who writes, for 1 to 32 hosts."""

from __future__ import annotations

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.train import hosts


@pytest.mark.parametrize("count", range(1, 33))
def test_every_place_and_every_core_belongs_to_one_host(count: int) -> None:
    batch = 8 * count
    places = [p for host in range(count) for p in hosts.host_places(batch, host, count)]
    assert sorted(places) == list(range(batch))
    cores = [c for host in range(count) for c in hosts.replica_ids(batch, host, count)]
    assert cores == list(range(batch))
    assert [hosts.is_writer(host, count) for host in range(count)].count(True) == 1


def test_what_does_not_divide_is_refused_with_what_does() -> None:
    assert hosts.check_divides(16, 8, 2) == 1
    with pytest.raises(BadInput, match="use 16 or 32"):
        hosts.check_divides(20, 8, 2)
    with pytest.raises(BadInput, match="use 8"):
        hosts.check_divides(4, 8, 1)
    with pytest.raises(BadInput):
        hosts.host_places(9, 0, 2)
    with pytest.raises(BadInput):
        hosts.replica_ids(9, 0, 2)
    with pytest.raises(ValueError, match="host 2 of 2"):
        hosts.is_writer(2, 2)
