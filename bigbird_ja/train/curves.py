"""A run's curves elsewhere than in metrics.jsonl: in TensorBoard, and in Weights & Biases."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten

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
    """TensorBoard's event file of one process: a local file, on a bucket uploaded at each save.

    TensorFlow's own writer uploads the whole file at every flush when it is on gs://.

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
        import tensorflow as tf
        from tensorflow.core.util import event_pb2

        self._clock, self._new = clock, event_pb2.Event
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self._target = storage.join(model_dir, name)
        self._local = os.path.join(scratch, name) if storage.is_remote(model_dir) else self._target
        self._writer = tf.io.TFRecordWriter(self._local)
        self._lock = threading.Lock()  # synced from the thread that saves
        self._unsynced = False
        self._write(self._new(wall_time=clock(), file_version="brain.Event:2"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._new(wall_time=clock(), step=start_step + 1, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the known keys of one logged step."""
        event = self._new(wall_time=self._clock(), step=step)
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

    def _write(self, event: Any) -> None:
        with self._lock:
            self._writer.write(event.SerializeToString())
            self._unsynced = True


def load_wandb() -> Any:
    """The wandb package.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        raise BadInput("--wandb needs the package: pip install wandb") from error
    return wandb


class WandbLog:
    """A run in Weights & Biases (`pretrain --wandb`), continued under its name after a restart.

    After a failure, which is logged, nothing more is sent: training does not end over a log.

    Args:
        library: the wandb package.
        name: of the run, the last part of MODEL_DIR.
        config: shown beside the curves; it holds no credentials.
        log: for failures.
    """

    def __init__(self, library: Any, name: str, config: Config, log: Callable[[str], None]) -> None:
        self._log, self._failed = log, False
        about: dict[str, Any] = {
            "project": "bigbird-ja",
            "id": name,
            "name": name,
            "resume": "allow",
        }
        # Neither what the program prints nor its files and their remote address are sent.
        about["settings"] = {"console": "off", "disable_git": True, "disable_code": True}
        self._run = self._try(lambda: library.init(**about, config=flatten(config)))

    def write(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Sends the numbers among `values`, as `prefix/key`."""
        numbers = {f"{prefix}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
        self._try(lambda: self._run.log(numbers, step=step))

    def close(self) -> None:
        """Ends the run there."""
        self._try(lambda: self._run.finish())

    def _try(self, act: Callable[[], Any]) -> Any:
        if self._failed:
            return None
        try:
            return act()
        except Exception as failure:
            self._failed = True
            self._log(f"Weights & Biases gets no more of this run: {failure}")
