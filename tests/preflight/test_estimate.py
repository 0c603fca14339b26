"""The search for the largest batch, the batch of a core, slices, and skipped tiles."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.accelerators.chips import CHIPS, MEGACORE
from bigbird_ja.data.manifest import Statistics
from bigbird_ja.errors import BadInput
from bigbird_ja.model.kernels.layer_shape import LayerShape
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate, figures
from bigbird_ja.preflight.compile import Program
from bigbird_ja.preflight.machine_code import Code
from bigbird_ja.preflight.results import StepResult
from bigbird_ja.train import optimizer
from testkit import synthetic
from testkit.configs import fitted, with_data
from tests.preflight.test_costs import NESTED


class Memory:
    """Simulated step, whose peak memory grows by `per_sequence` bytes with each sequence.

    `tried` contains the batch sizes that were tried.
    """

    def __init__(self, limit, base, per_sequence, knows=True):
        self.limit, self.base, self.per_sequence, self.knows = limit, base, per_sequence, knows
        self.tried = []

    def __call__(self, batch):
        assert batch not in self.tried
        self.tried.append(batch)
        peak = self.base + self.per_sequence * batch
        fits = peak <= self.limit
        return StepResult(
            chip="v5e",
            seq_length=128,
            batch_per_core=batch,
            fits=fits,
            hbm_limit_bytes=self.limit,
            hbm_peak_bytes=peak if fits or self.knows else None,
        )


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("first", [2, 64])
@pytest.mark.parametrize(("limit", "base", "slope"), [(100, 10, 9), (100, 99, 9), (500, 1, 1.5)])
def test_the_largest_batch(limit, base, slope, first, knows):
    memory = Memory(limit, base, slope, knows)
    expected = int((limit - base) / slope)
    assert estimate.find_largest_batch(memory, memory(first)) == expected


def test_search_for_the_largest_batch_takes_few_compilations():
    memory = Memory(7480, 2000, 400)
    assert estimate.find_largest_batch(memory, memory(2)) == 13
    assert len(memory.tried) <= 4
    memory = Memory(1e12, 1, 1)
    assert estimate.find_largest_batch(memory, memory(2)) == 1024


def test_one_device_orthogonalizes_its_share_of_matrices():
    matrix = np.random.default_rng(2).standard_normal((16, 40), np.float32)
    share = estimate.orthogonalize_share(tf.stack([matrix] * 3), devices=2).numpy()
    expected = optimizer.orthogonalize(matrix[None])[0]
    np.testing.assert_allclose(share[:2], [expected, expected], atol=1e-6)
    np.testing.assert_array_equal(share[2], matrix)


def test_batch_per_core():
    sets = ["training.global_batch_size=64", "training.gradient_accumulation_steps=2"]
    config = fitted(None, sets)
    # 64 sequences are divided by the 8 cores of tpu.num_cores, and by 2 micro-batches.
    assert estimate.divide_batch(config, compile_lib.find_chip("v3")) == 4
    assert estimate.divide_batch(config, compile_lib.find_slice("v5e:4x8")) == 1
    config = fitted(None, ["training.global_batch_size=8"])
    with pytest.raises(BadInput, match=r"^`topology` v5e:4x8: .*`batch_per_core`"):
        estimate.divide_batch(config, compile_lib.find_slice("v5e:4x8"))


def test_loop_of_unknown_length_has_no_total(monkeypatch):
    """Report no total, since the cycles of a single iteration would be too few."""
    sizes = dict.fromkeys(("temp_bytes", "argument_bytes", "output_bytes", "alias_bytes"), 1 << 20)
    monkeypatch.setattr(estimate, "trace", lambda *_: None)
    results = []
    for text in (NESTED, NESTED.replace("direction=LT", "direction=NE")):
        program = Program(hlo=text, sizes=sizes, code={"work": Code(80.0)})
        monkeypatch.setattr(estimate, "compile_for", lambda *_, program=program: program)
        config = with_data(fitted(None, ["model.attention_implementation=xla"]))
        results.append(estimate.examine(*config, compile_lib.find_slice("v5e:2x2"), 2))
    counted, unknown = results
    assert counted.priced_cycles == 35 * 100 + 7 * 10 and counted.code_cycles > 0
    assert unknown.fits and unknown.hbm_peak_bytes == counted.hbm_peak_bytes == 2 << 20
    for key in ("code_cycles", "priced_cycles", "step_ms", "mfu", "tokens_per_second"):
        assert getattr(unknown, key) is None and getattr(counted, key) is not None, key
    text = figures.describe(unknown)
    assert "time: unknown, as once is in a loop of unknown trip count" in text


def test_slices_by_name():
    found = [compile_lib.find_slice(name) for name in ("v5e:2x4", "v5e:1x1", "v4:2x2x1")]
    assert [target.devices for target in found] == [8, 1, 4]
    assert [target.chip for target in found] == [CHIPS["v5e"], CHIPS["v5e"], MEGACORE["v4"]]
    assert found[1].options == {"chips_per_host_bounds": (1, 1, 1)}
    megacore = {"chips_per_host_bounds": (2, 2, 1), "chip_config_name": "megacore"}
    assert found[2].options == megacore
    assert compile_lib.find_slice("v7x:2x2x1").topology == "tpu7x:2x2x1"
    assert all(target.is_slice for target in found) and not compile_lib.find_chip("v5e").is_slice


@pytest.mark.parametrize("name", ["2x4", "v5e:8", "v9:2x2", "v5e:2x4x2x2"])
def test_unknown_slice_is_refused(name):
    shown = "such as v5e:2x4" if name.startswith("v5e") else "the chips are v2, v3"
    with pytest.raises(BadInput, match=f"`topology` .{name}. is not a topology .*{shown}"):
        compile_lib.find_slice(name)


SHAPE = LayerShape(1, 13, 2, 64, 128, None, True, "bfloat16")


def test_trips_follow_the_lengths_of_documents():
    pytest.importorskip("jax", minversion="0.7", reason="the kernels want jax 0.7")
    # Documents of 4,096 to 8,191 tokens, each of which fills several sequences and a part of
    # another one.
    whole = (*[0] * 12, 1)
    assert estimate.average_trips(SHAPE, (*[0] * 24, 1))[1] == pytest.approx(1, abs=0.01)
    means, share = estimate.average_trips(SHAPE, whole)
    assert 0.5 < share < 1 and len(means) == len(SHAPE.runs)
    counted = sum(mean * many for mean, many in zip(means, SHAPE.runs, strict=True))
    assert counted == pytest.approx(share * SHAPE.tiles)
    # Documents of 16 to 31 tokens cross at most one border between tiles. A tile of queries
    # therefore needs at most three of the 13 tiles of keys: the one at its place and its neighbors.
    assert estimate.average_trips(SHAPE, (0, 0, 0, 0, 1))[1] < 3 / 13


@pytest.mark.parametrize(
    ("sets", "has_loops"),
    [
        ({"model.architecture": "modernbert"}, True),
        ({"model.attention_type": "original_full"}, True),
        ({"model.architecture": "modernbert", "model.attend_across_documents": True}, False),
        ({"model.architecture": "modernbert", "model.attention_implementation": "xla"}, False),
        ({}, False),  # The default is the rolled pattern.
        ({"model.architecture": "modernbert", "make_data.seq_length": 512}, False),  # only 2 tiles
    ],
)
def test_layers_that_skip_other_documents(sets, has_loops):
    pytest.importorskip("jax", minversion="0.7", reason="the kernels want jax 0.7")
    kernels = {"model.attention_implementation": "kernel", "model.attend_across_documents": False}
    words = [f"{key}={value}" for key, value in (kernels | sets).items()]
    config, data = with_data(fitted(None, words))
    trips, stated = estimate.measure_documents(config, data)
    assert bool(trips) == has_loops
    assert (stated["key_tiles_share"] is not None) == has_loops
    assert stated["document_lengths"] == ("stated" if has_loops else None)


def test_lengths_of_documents_come_from_the_data_set(tmp_path):
    own = [0] * 9 + [7] + [0] * 15
    made = synthetic.write(tmp_path / "a", statistics=Statistics(document_tokens=tuple(own)))
    assert estimate.read_document_lengths(made) == (tuple(own), "of the data set")
    assert estimate.read_document_lengths(synthetic.write(tmp_path / "b"))[1] == "stated"
