"""Which process of a pod this is."""

from __future__ import annotations

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.train.pods import place
from bigbird_ja.train.pods.place import Place

ENVIRON = {
    "JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3",
}  # fmt: skip


def test_flags_come_before_jax_variables() -> None:
    assert place.find("b:2", 2, 1, ENVIRON, None) == Place(1, 2, "b:2")
    assert place.find(None, None, None, ENVIRON, None) == Place(3, 4, "a:1")
    assert place.find(None, None, 0, ENVIRON, None) == Place(0, 4, "a:1")


def test_nothing_said_is_one_process() -> None:
    assert place.find(None, None, None, {}, None) == Place()
    assert place.find(None, 1, None, {}, None) == Place()
    assert place.find("a:1", 1, 0, {}, None) == Place()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("a:1", None, None), "--num_processes"),
        ((None, 2, None), "--coordinator_address"),
        (("a:1", 2, None), "--process_id"),
        (("a:1", 2, 2), "a process too many"),
        (("a", 2, 1), "HOST:PORT"),
        ((":80", 2, 1), "HOST:PORT"),
        (("a:99999", 2, 1), "HOST:PORT"),
    ],
)
def test_half_of_it_is_refused(given: tuple, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        place.find(*given, {}, None)


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(BadInput, match=r"JAX_PROCESS_ID.*three"):
        place.find(None, None, None, {**ENVIRON, "JAX_PROCESS_ID": "three"}, None)


def test_a_tpu_slice_says_it_itself() -> None:
    gce = {
        "worker-network-endpoints": "unknown:8470:10.0.0.5,unknown:8470:10.0.0.6",
        "agent-worker-number": "1",
    }
    assert place.find(None, None, None, {}, gce.get) == Place(1, 2, "10.0.0.5:8476")
    group = {"worker-network-endpoints": "run-1-h1,run-1-h2", "worker-id": "1"}
    assert place.find(None, None, None, {}, group.get) == Place(1, 2, "run-1-h1:8476")
    gke = {"TPU_WORKER_HOSTNAMES": "w-0.x,w-1.x,w-2.x", "TPU_WORKER_ID": "2"}
    assert place.find(None, None, None, gke, {}.get) == Place(2, 3, "w-0.x:8476")
    one = {"worker-network-endpoints": "unknown:8470:10.0.0.5", "agent-worker-number": "0"}
    assert place.find(None, None, None, {}, one.get) == Place()
    assert place.find(None, None, None, {}, {}.get) == Place()


def test_several_slices_are_refused() -> None:
    with pytest.raises(BadInput, match="several TPU slices"):
        place.find(None, None, None, {"MEGASCALE_NUM_SLICES": "2"}, {}.get)
