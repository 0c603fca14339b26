"""Which process of a pod this is, and what all of them must share."""

from __future__ import annotations

from typing import Any

import pytest

from bigbird_ja.process.errors import BadInput
from bigbird_ja.train.hosts import Process, check_same, find_process

ENVIRON = {
    "JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3",
}  # fmt: skip
NONE = (None, None, None)
GCE = {
    "worker-network-endpoints": "unknown:8470:10.0.0.5,unknown:8470:10.0.0.6",
    "agent-worker-number": "1",
}
GROUP = {"worker-network-endpoints": "run-1-h1,run-1-h2", "worker-id": "1"}
GKE = {"TPU_WORKER_HOSTNAMES": "w-0.x,w-1.x,w-2.x", "TPU_WORKER_ID": "2"}
ONE_HOST = {"worker-network-endpoints": "unknown:8470:10.0.0.5", "agent-worker-number": "0"}


@pytest.mark.parametrize(
    ("flags", "environ", "metadata", "process"),
    [
        (("b:2", 2, 1), ENVIRON, None, Process(1, 2, "b:2")),  # flags before variables
        (NONE, ENVIRON, None, Process(3, 4, "a:1")),
        ((None, None, 0), ENVIRON, None, Process(0, 4, "a:1")),
        (NONE, {}, None, Process()),
        ((None, 1, None), {}, None, Process()),
        (("a:1", 1, 0), {}, None, Process()),
        (NONE, {}, GCE, Process(1, 2, "10.0.0.5:8476")),
        (NONE, {}, GROUP, Process(1, 2, "run-1-h1:8476")),
        (NONE, GKE, {}, Process(2, 3, "w-0.x:8476")),
        (NONE, {}, ONE_HOST, Process()),
        (NONE, {}, {}, Process()),
    ],
)
def test_the_process_is_known_from_flags_variables_or_the_tpu(
    flags: Any, environ: dict[str, str], metadata: dict[str, str] | None, process: Process
) -> None:
    get = None if metadata is None else metadata.get
    assert find_process(flags, environ, get) == process


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        (("a:1", None, None), {}, "--num_processes"),
        ((None, 2, None), {}, "--coordinator_address"),
        (("a:1", 2, None), {}, "--process_id"),
        (("a:1", 2, 2), {}, "a process too many"),
        (("a", 2, 1), {}, "HOST:PORT"),
        ((":80", 2, 1), {}, "HOST:PORT"),
        (("a:99999", 2, 1), {}, "HOST:PORT"),
        (NONE, {**ENVIRON, "JAX_PROCESS_ID": "three"}, r"JAX_PROCESS_ID.*three"),
        (NONE, {"MEGASCALE_NUM_SLICES": "2"}, "several TPU slices"),
    ],
)
def test_what_is_incomplete_or_impossible_is_refused(
    flags: Any, environ: dict[str, str], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        find_process(flags, environ, {}.get)


CARD = {"version": "1", "settings": {"a": "1", "b": "2"}, "MODEL_DIR": "gs://b/m"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "2"}, r"process 2 has another version \(2\) than process 0 \(1\): install"),
        ({"settings": {"a": "1", "b": "3"}}, r"another settings \(b=3\) than process 0 \(b=2\)"),
        ({"settings": {"a": "1"}}, r"\(b=None\) than"),
        ({"MODEL_DIR": "m"}, "give the same --model_dir everywhere"),
    ],
)
def test_the_first_difference_is_named(change: dict[str, Any], words: str) -> None:
    cards = [{"name": f"process {index}", **CARD} for index in range(3)]
    check_same(cards)
    with pytest.raises(BadInput, match=words):
        check_same([*cards[:2], {**cards[2], **change}])
