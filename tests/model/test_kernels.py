"""The attention kernels, by Pallas' interpreters, against dense attention with the same mask.

More about them, under all shapes of XLA's way: test_attention.
"""

from __future__ import annotations

from typing import Any

import pytest

from bigbird_ja.model import pattern
from tests.model.test_attention import assert_equal, config_of, inputs_of, run

pytest.importorskip("jax")

# Block size, blocks, random blocks, heads, size of a head; two heads of 64 share one step.
SHAPES = {
    "group": (8, 10, 1, 2, 64),
    "no random": (4, 8, 0, 2, 16),
    "three shifts": (4, 24, 5, 4, 64),
}


def _check(name: str, documents: bool, interpret: Any) -> None:
    block, blocks, num_random, heads, size = SHAPES[name]
    length, width = block * blocks, heads * size
    sets = {"block_size": block, "num_random_blocks": num_random, "hidden_size": width}
    sets["num_attention_heads"] = heads
    kernels = config_of("block_sparse", "kernels", length, **sets)
    dense = config_of("simulated_sparse", "rolled", length, **sets)
    assert not pattern.is_full(kernels, length)
    inputs = inputs_of(length, width)
    result = run(kernels, inputs, documents=documents, interpret=interpret)
    assert_equal(result, run(dense, inputs, documents=documents))


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("group", True),
        pytest.param("group", False, marks=pytest.mark.nightly),
        pytest.param("three shifts", False, marks=pytest.mark.nightly),
        pytest.param("three shifts", True, marks=pytest.mark.nightly),
    ],
)
def test_values_and_gradients_equal_the_dense_reference(name: str, documents: bool) -> None:
    _check(name, documents, interpret=True)


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("no random", True),
        pytest.param("group", False, marks=pytest.mark.nightly),
        pytest.param("group", True, marks=pytest.mark.nightly),
    ],
)
def test_the_interpreter_of_a_tpus_memories_agrees(name: str, documents: bool) -> None:
    tpu = pytest.importorskip("jax.experimental.pallas.tpu")
    if not hasattr(tpu, "InterpretParams"):
        pytest.skip("this jax has no such interpreter")
    _check(name, documents, tpu.InterpretParams())
