"""How the processes of a pod that do not write go on where the writer does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.storage import lease
from bigbird_ja.storage.lease import Lease
from bigbird_ja.train.run_dir import LOCK, Resumption

# A file that one host has written is seen by the others so late, on a shared disk.
_VISIBLE_SECONDS = 15.0
_POLL_SECONDS = 0.5


def start_of(found: Resumption, lock: Lease) -> dict[str, Any]:
    """What the writer tells the others before training starts."""
    step = None if found.checkpoint is None else found.step
    return {
        "lease": lock.owner.id,
        "step": step,
        "interruptions": found.interruptions,
        "next_batch": found.next_batch,
    }


def check_same_folder(model_dir: str, owner: str, clock: Callable[[], float] = time.time) -> None:
    """Whether this host's MODEL_DIR is the writer's: its lease is there.

    Raises:
        BadInput: it is another folder.
    """
    end = clock() + _VISIBLE_SECONDS
    path = storage.join(model_dir, LOCK)
    while True:
        holder = lease.holder_of(path)
        if holder is not None and holder.id == owner:
            return
        if clock() > end:
            raise BadInput(
                f"{model_dir} on this host is not the folder that process 0 writes to: give a"
                " --model_dir on gs://, or on a disk that all hosts share"
            )
        time.sleep(_POLL_SECONDS)


def resumption(store: CheckpointStore, start: Mapping[str, Any]) -> Resumption:
    """Where training continues, as the writer has found; the checkpoint is verified here too."""
    step = start["step"]
    checkpoint = None if step is None else store.fetch(int(step))
    return Resumption(checkpoint, int(start["interruptions"]), int(start["next_batch"]))
