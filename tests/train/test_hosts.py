"""How a process finds its index in a pod, and how the settings of all processes are compared."""

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.train.hosts import ALONE, check_same, find_process, find_slice_place

NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
GCE = {
    "worker-network-endpoints": "unknown:8470:10.0.0.5,unknown:8470:10.0.0.6",
    "agent-worker-number": "1",
}
GROUP = {"worker-network-endpoints": "run-1-h1,run-1-h2", "worker-id": "1"}
GKE = {"TPU_WORKER_HOSTNAMES": "w-0.x,w-1.x,w-2.x", "TPU_WORKER_ID": "2"}
ONE_HOST = {"worker-network-endpoints": "unknown:8470:10.0.0.5", "agent-worker-number": "0"}


@pytest.mark.parametrize(
    ("values", "place", "process"),
    [
        (("a:1", "4", "3"), None, (3, 4, "a:1")),
        ((), None, ALONE),
        (("", "1"), None, ALONE),
        (("a:1", "1", "0"), None, ALONE),
        ((), (["10.0.0.5", "10.0.0.6"], 1), (1, 2, "10.0.0.5:8476")),
        ((), (["10.0.0.5"], 0), ALONE),
        (("a:1", "4", "3"), (["10.0.0.5", "10.0.0.6"], 1), (3, 4, "a:1")),
    ],
)
def test_process_is_found_from_variables_or_the_tpu(values, place, process):
    get = None if place is None else lambda: place
    assert find_process(dict(zip(NAMES, values, strict=False)), get) == process


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
def test_place_in_a_slice_is_read_from_the_machine(environ, metadata, place):
    assert find_slice_place(environ, metadata.get) == place
    with pytest.raises(BadInput, match="several TPU slices"):
        find_slice_place({**environ, "MEGASCALE_NUM_SLICES": "2"}, metadata.get)


@pytest.mark.parametrize(
    "values",
    [
        ("a:1",),
        ("", "2"),
        ("a:1", "2"),
        ("a:1", "2", "2"),
        ("a", "2", "1"),
        (":80", "2", "1"),
        ("a:99999", "2", "1"),
        ("a:1", "4", "three"),
    ],
)
def test_incomplete_or_impossible_variables_are_refused(values):
    with pytest.raises(BadInput, match=r"a pod of N processes needs .* here they are \w+=\S+"):
        find_process(dict(zip(NAMES, values, strict=False)), None)


def test_differences_between_processes_are_named():
    first = {"jax": "0.7.2", "--mode": "train", "training.seed": "1"}
    check_same("process 2", first, dict(first))
    ours = {"jax": "0.8", "--mode": "train"}
    words = r"2 differs from process 0 \(jax=0.8 instead of 0.7.2; training.seed=None instead of 1"
    with pytest.raises(BadInput, match=words):
        check_same("process 2", ours, first)
