"""The lengths of documents that a count of kernels goes by."""

import pytest

from bigbird_ja.preflight import estimate
from testkit import synthetic
from testkit.configs import fitted, with_data

pytest.importorskip("jax", minversion="0.7", reason="the kernels want jax 0.7")

from bigbird_ja.model.kernels.layer_shape import LayerShape

SHAPE = LayerShape(1, 13, 2, 64, 128, None, True, "bfloat16")


def test_loops_run_as_often_as_documents_are_long():
    whole = (*[0] * 12, 1)  # each fills sequences, and leaves a rest
    assert estimate.mean_trips(SHAPE, (*[0] * 24, 1))[1] == pytest.approx(1, abs=0.01)
    means, share = estimate.mean_trips(SHAPE, whole)
    assert 0.5 < share < 1 and len(means) == len(SHAPE.runs)
    counted = sum(mean * many for mean, many in zip(means, SHAPE.runs, strict=True))
    assert counted == pytest.approx(share * SHAPE.tiles)
    assert estimate.mean_trips(SHAPE, (0, 0, 0, 0, 1))[1] < 3 / 13  # and those beside a tile


@pytest.mark.parametrize(
    ("sets", "has_loops"),
    [
        ({"model.architecture": "modernbert"}, True),
        ({"model.attention_type": "original_full"}, True),
        ({"model.architecture": "modernbert", "model.attend_across_documents": True}, False),
        ({"model.architecture": "modernbert", "model.attention_implementation": "xla"}, False),
        ({}, False),  # rolled
        ({"model.architecture": "modernbert", "make_data.seq_length": 512}, False),  # two tiles
    ],
)
def test_layers_that_skip_other_documents(sets, has_loops):
    kernels = {"model.attention_implementation": "kernel", "model.attend_across_documents": False}
    words = [f"{key}={value}" for key, value in (kernels | sets).items()]
    config, data = with_data(fitted(None, words))
    trips, stated = estimate.by_documents(config, data)
    assert bool(trips) == has_loops
    assert (stated["key_tiles_share"] is not None) == has_loops
    assert stated["document_lengths"] == ("stated" if has_loops else None)


def test_a_data_set_has_lengths_of_its_own(tmp_path):
    own = [0] * 9 + [7] + [0] * 15
    made = synthetic.write(tmp_path / "a", statistics={"document_tokens": own})
    assert estimate.document_lengths(made) == (tuple(own), "of the data set")
    assert estimate.document_lengths(synthetic.write(tmp_path / "b"))[1] == "stated"
