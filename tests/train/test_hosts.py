"""Which process of a pod this is, and what all of them must share."""

from types import SimpleNamespace

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.train.hosts import PodPlace, check_same, find_process, slice_place

ENVIRON = {
    "JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3",
}  # fmt: skip
FLAGS = ("coordinator_address", "num_processes", "process_id")
NONE = (None, None, None)
GCE = {
    "worker-network-endpoints": "unknown:8470:10.0.0.5,unknown:8470:10.0.0.6",
    "agent-worker-number": "1",
}
GROUP = {"worker-network-endpoints": "run-1-h1,run-1-h2", "worker-id": "1"}
GKE = {"TPU_WORKER_HOSTNAMES": "w-0.x,w-1.x,w-2.x", "TPU_WORKER_ID": "2"}
ONE_HOST = {"worker-network-endpoints": "unknown:8470:10.0.0.5", "agent-worker-number": "0"}


@pytest.mark.parametrize(
    ("flags", "environ", "place", "process"),
    [
        (("b:2", 2, 1), ENVIRON, None, PodPlace(1, 2, "b:2")),  # flags before variables
        (NONE, ENVIRON, None, PodPlace(3, 4, "a:1")),
        ((None, None, 0), ENVIRON, None, PodPlace(0, 4, "a:1")),
        (NONE, {}, None, PodPlace()),
        ((None, 1, None), {}, None, PodPlace()),
        (("a:1", 1, 0), {}, None, PodPlace()),
        (NONE, {}, (["10.0.0.5", "10.0.0.6"], 1), PodPlace(1, 2, "10.0.0.5:8476")),
        (NONE, {}, (["10.0.0.5"], 0), PodPlace()),
        (NONE, ENVIRON, (["10.0.0.5", "10.0.0.6"], 1), PodPlace(3, 4, "a:1")),
    ],
)
def test_the_process_is_known_from_flags_variables_or_the_tpu(flags, environ, place, process):
    get = None if place is None else lambda: place
    args = SimpleNamespace(**dict(zip(FLAGS, flags, strict=True)))
    assert find_process(args, environ, get) == process


@pytest.mark.parametrize(
    ("environ", "metadata", "place"),
    [
        ({}, GCE, (["10.0.0.5", "10.0.0.6"], 1)),
        ({}, GROUP, (["run-1-h1", "run-1-h2"], 1)),
        (GKE, {}, (["w-0.x", "w-1.x", "w-2.x"], 2)),
        ({}, ONE_HOST, (["10.0.0.5"], 0)),
        ({}, {}, None),
    ],
)
def test_the_place_in_a_slice_is_what_the_machine_says(environ, metadata, place):
    assert slice_place(environ, metadata.get) == place
    with pytest.raises(BadInput, match="several TPU slices"):
        slice_place({**environ, "MEGASCALE_NUM_SLICES": "2"}, metadata.get)


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (("a:1", None, None), {}),
        ((None, 2, None), {}),
        (("a:1", 2, None), {}),
        (("a:1", 2, 2), {}),
        (("a", 2, 1), {}),
        ((":80", 2, 1), {}),
        (("a:99999", 2, 1), {}),
        (NONE, {**ENVIRON, "JAX_PROCESS_ID": "three"}),
    ],
)
def test_what_is_incomplete_or_impossible_is_refused_with_what_is_there(flags, environ):
    with pytest.raises(BadInput, match=r"a pod of N processes needs .* here they are \w+=\S+"):
        find_process(SimpleNamespace(**dict(zip(FLAGS, flags, strict=True))), environ, None)


def test_each_difference_is_named():
    first = {"jax": "0.7.2", "--mode": "train", "training.seed": "1"}
    check_same("process 2", first, dict(first))
    ours = {"jax": "0.8", "--mode": "train"}
    words = (
        r"process 2 differs from process 0 \(jax=0.8 and not 0.7.2; training.seed=None and not 1"
    )
    with pytest.raises(BadInput, match=words):
        check_same("process 2", ours, first)
