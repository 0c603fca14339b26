"""TensorBoard event files of a run."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.evaluation import tensorboard

# Keys of metrics.jsonl that TensorBoard shows under `speed/`; others are under `train/`.
_SPEED = ("tokens_per_second", "mfu")
_NOT_SHOWN = ("step", "time", "train_seconds")


class EventWriter:
    """TensorBoard's event file of one process; on a bucket it is uploaded at each save.

    TensorFlow's own writer uploads the whole file to gs:// at every flush.

    Args:
        model_dir: folder in which TensorBoard looks.
        scratch: local folder for the file while `model_dir` is on a bucket.
        start_step: step from which training continues; TensorBoard drops later steps of earlier
            files.
        clock: clock, UNIX seconds.
    """

    def __init__(
        self, model_dir: str, scratch: str, start_step: int, clock: Callable[[], float]
    ) -> None:
        from tensorflow.core.util import event_pb2

        self._clock = clock
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self._target = storage.join(model_dir, name)
        self._local = os.path.join(scratch, name) if storage.is_remote(model_dir) else self._target
        self._write(event_pb2.Event(wall_time=clock(), file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(wall_time=clock(), step=start_step + 1, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one logged step."""
        tags = {
            f"speed/{key}" if key in _SPEED else f"train/{key}": value
            for key, value in values.items()
            if key not in _NOT_SHOWN
        }
        self._write(tensorboard.scalars_event(step, self._clock(), tags))

    def sync(self) -> None:
        """Upload the file, if MODEL_DIR is on a bucket."""
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def _write(self, event: Any) -> None:
        with open(self._local, "ab") as file:
            file.write(tensorboard.encode(event))
