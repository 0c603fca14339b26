"""TensorBoard's event file of a training process."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.evaluation.tensorboard import encode, make_scalars_event
from bigbird_ja.model_dir.folder import ModelDir

# Keys of metrics.jsonl that TensorBoard shows under `speed/`. Other keys are under `train/`.
_SPEED = ("tokens_per_second", "mfu")
_NOT_SHOWN = ("step", "time", "train_seconds")


class EventWriter:
    """TensorBoard's event file of one process.

    On a bucket the file is uploaded at each save. TensorFlow's own writer would upload the whole
    file at every flush.

    Args:
        model_dir: locked MODEL_DIR. The file is added to the ownership manifest before it is
            written.
        start_step: step from which training continues. TensorBoard does not show later steps from
            the event files of earlier processes.
        clock: clock, UNIX seconds.
    """

    def __init__(self, model_dir: ModelDir, start_step: int, clock: Callable[[], float]) -> None:
        from tensorflow.core.util import event_pb2

        self._clock = clock
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        model_dir.owned.note({name: None})
        self._local = self._target = model_dir.join(name)
        if storage.is_remote(self._target):
            self._local = os.path.join(model_dir.scratch, name)
        self._write(event_pb2.Event(wall_time=clock(), file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(wall_time=clock(), step=start_step + 1, session_log=start))

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one logged step."""
        tags = {
            f"speed/{key}" if key in _SPEED else f"train/{key}": value
            for key, value in values.items()
            if key not in _NOT_SHOWN
        }
        self._write(make_scalars_event(step, self._clock(), tags))

    def sync(self) -> None:
        """Upload the file, if MODEL_DIR is on a bucket."""
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def _write(self, event: Any) -> None:
        with open(self._local, "ab") as file:
            file.write(encode(event))
