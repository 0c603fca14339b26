"""TensorBoard event files, written by us: one local file, on a bucket uploaded whole at each save.

TensorFlow's own writer uploads the whole file at every flush when it is on gs://.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

import tensorflow as tf
from tensorflow.core.util import event_pb2

from bigbird_ja import storage

# metrics.jsonl's key -> TensorBoard's tag
_TAGS = {
    "loss": "train/loss",
    "masked_lm_loss": "train/masked_lm_loss",
    "masked_lm_accuracy": "train/masked_lm_accuracy",
    "next_sentence_loss": "train/next_sentence_loss",
    "next_sentence_accuracy": "train/next_sentence_accuracy",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "mfu": "speed/mfu",
}


class EventWriter:
    """One event file of one process.

    Args:
        model_dir: where TensorBoard looks.
        scratch: where the file is written while `model_dir` is on a bucket.
        start_step: the step continued from; TensorBoard drops what an earlier file has after it.
        clock: UNIX seconds.
    """

    def __init__(
        self,
        model_dir: str,
        scratch: str,
        start_step: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self._target = storage.join(model_dir, name)
        self._local = os.path.join(scratch, name) if storage.is_remote(model_dir) else self._target
        self._writer = tf.io.TFRecordWriter(self._local)
        self._lock = threading.Lock()  # synced from the thread that saves
        self._unsynced = False
        self._write(event_pb2.Event(wall_time=clock(), file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(wall_time=clock(), step=start_step + 1, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the known keys of one logged step."""
        event = event_pb2.Event(wall_time=self._clock(), step=step)
        for key, tag in _TAGS.items():
            if key in values:
                event.summary.value.add(tag=tag, simple_value=float(values[key]))
        self._write(event)

    def sync(self) -> None:
        """Makes what was written visible to readers."""
        with self._lock:
            if not self._unsynced:
                return
            self._unsynced = False
            self._writer.flush()
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def close(self) -> None:
        """Ends the file."""
        self.sync()
        self._writer.close()

    def _write(self, event: event_pb2.Event) -> None:
        with self._lock:
            self._writer.write(event.SerializeToString())
            self._unsynced = True
