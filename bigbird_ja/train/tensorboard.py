"""TensorBoard event files of a run."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import tfrecords

# Keys of metrics.jsonl that TensorBoard shows under `speed/`, and that it does not show; all others
# are under `train/`.
_SPEED = ("tokens_per_second", "mfu")


_NOT_SHOWN = ("step", "time", "train_seconds")


class EventWriter:
    """Write TensorBoard's event file of one process: local, on a bucket uploaded at each save.

    TensorFlow's own writer uploads the whole file at every flush when it is on gs://.

    Args:
        model_dir: where TensorBoard looks.
        scratch: where the file is written while `model_dir` is on a bucket.
        start_step: the step continued from; TensorBoard drops what an earlier file has after it.
        clock: UNIX seconds.
    """

    def __init__(
        self, model_dir: str, scratch: str, start_step: int, clock: Callable[[], float]
    ) -> None:
        from tensorflow.core.util import event_pb2

        self._clock, self._new = clock, event_pb2.Event
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self._target = storage.join(model_dir, name)
        self._local = os.path.join(scratch, name) if storage.is_remote(model_dir) else self._target
        self._write(self._new(wall_time=clock(), file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._new(wall_time=clock(), step=start_step + 1, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one logged step."""
        event = self._new(wall_time=self._clock(), step=step)
        for key, value in values.items():
            if key not in _NOT_SHOWN:
                tag = f"speed/{key}" if key in _SPEED else f"train/{key}"
                event.summary.value.add(tag=tag, simple_value=float(value))
        self._write(event)

    def sync(self) -> None:
        """Bring a bucket's copy up to date."""
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def _write(self, event: Any) -> None:
        with open(self._local, "ab") as file:
            file.write(tfrecords.frame([event.SerializeToString()]))
