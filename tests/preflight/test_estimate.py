"""The search for the largest batch, batches by config, and slices by name."""

import pytest

from bigbird_ja.accelerators import CHIPS, MEGACORE
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate
from bigbird_ja.process.errors import BadInput
from testkit.configs import fitted


class Memory:
    """A step whose peak grows by `per_sequence`; notes which batches are tried."""

    def __init__(self, limit, base, per_sequence, knows=True):
        self.limit, self.base, self.per_sequence, self.knows = limit, base, per_sequence, knows
        self.tried = []

    def __call__(self, batch):
        assert batch not in self.tried
        self.tried.append(batch)
        peak = self.base + self.per_sequence * batch
        result = {"batch_per_core": batch, "fits": peak <= self.limit}
        known = peak if result["fits"] or self.knows else None
        return result | {"hbm_limit_bytes": self.limit, "hbm_peak_bytes": known}


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("first", [2, 64])
@pytest.mark.parametrize(("limit", "base", "slope"), [(100, 10, 9), (100, 99, 9), (500, 1, 1.5)])
def test_the_largest_batch(limit, base, slope, first, knows):
    memory = Memory(limit, base, slope, knows)
    expected = int((limit - base) / slope)
    assert estimate.largest_batch(memory, memory(first)) == expected


def test_few_compilations_where_memory_is_linear_and_an_end_where_everything_fits():
    memory = Memory(7480, 2000, 400)
    assert estimate.largest_batch(memory, memory(2)) == 13
    assert len(memory.tried) <= 4
    memory = Memory(1e12, 1, 1)
    assert estimate.largest_batch(memory, memory(2)) == 1024


def test_batch_per_core():
    sets = ["training.global_batch_size=64", "training.gradient_accumulation_steps=2"]
    config = fitted(None, sets)
    assert estimate.batch_per_core(config, compile_lib.of_chip("v3")) == 4  # by tpu.num_cores=8
    assert estimate.batch_per_core(config, compile_lib.of_topology("v5e:4x8")) == 1


def test_slices_by_name():
    found = [compile_lib.of_topology(name) for name in ("v5e:2x4", "v5e:1x1", "v4:2x2x1")]
    assert [target.devices for target in found] == [8, 1, 4]
    assert [target.chip for target in found] == [CHIPS["v5e"], CHIPS["v5e"], MEGACORE["v4"]]
    assert found[1].options == {"chips_per_host_bounds": (1, 1, 1)}
    assert found[2].options == {"chip_config_name": "megacore"}
    assert compile_lib.of_topology("v7x:2x2x1").topology == "tpu7x:2x2x1"
    assert all(target.is_slice for target in found) and not compile_lib.of_chip("v5e").is_slice


@pytest.mark.parametrize(
    ("name", "printed"),
    [("2x4", "chips: v2, v3"), ("v5e", "such as v5e:2x4"), ("v5e:2-4", "such as v5e:2x4")],
)
def test_a_slice_that_there_is_not(name, printed):
    with pytest.raises(BadInput, match=f"--topology '{name}' is no topology .*{printed}"):
        compile_lib.of_topology(name)
