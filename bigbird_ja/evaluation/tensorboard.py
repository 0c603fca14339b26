"""TensorBoard event files of a run: of training, and of evaluations."""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import tfrecords

# Keys of metrics.jsonl that TensorBoard shows under `speed/`; others are under `train/`.
_SPEED = ("tokens_per_second", "mfu")
_NOT_SHOWN = ("step", "time", "train_seconds")


def encode(*events: Any) -> bytes:
    """Return the content of an event file; tf.summary would need TensorBoard's package."""
    return tfrecords.frame([event.SerializeToString() for event in events])


def scalars_event(step: int, wall_time: float, values: Mapping[str, Any]) -> Any:
    """Return an event with the numbers in `values`, by tag; `wall_time` in UNIX seconds."""
    from tensorflow.core.util import event_pb2

    event = event_pb2.Event(step=step, wall_time=wall_time)
    for tag, value in values.items():
        if isinstance(value, (int, float)):
            event.summary.value.add(tag=tag, simple_value=float(value))
    return event


def write_evaluation(
    model_dir: str, step: int, result: Mapping[str, Any], wall_time: float
) -> None:
    """Write an evaluation's numbers, `eval/...`, to an event file in `MODEL_DIR/eval/`.

    TensorBoard shows that folder as another run, so that a later evaluation of an older checkpoint
    hides nothing.

    Args:
        model_dir: folder of the run, on disk or gs://.
        step: global step.
        result: results of `evaluate_model`.
        wall_time: UNIX seconds.
    """
    from tensorflow.core.util import event_pb2

    omitted = ("step", "time", "max_batches")
    tags = {f"eval/{key}": value for key, value in result.items() if key not in omitted}
    start = event_pb2.Event(file_version="brain.Event:2")
    storage.make_directory(storage.join(model_dir, "eval"))
    # A repeated evaluation of a step replaces its file.
    path = storage.join(model_dir, f"eval/events.out.tfevents.{step:012d}.eval")
    storage.write_bytes(path, encode(start, scalars_event(step, wall_time, tags)))


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
        self._write(scalars_event(step, self._clock(), tags))

    def sync(self) -> None:
        """Upload the file, if MODEL_DIR is on a bucket."""
        if self._local != self._target:
            storage.upload(self._local, self._target)

    def _write(self, event: Any) -> None:
        with open(self._local, "ab") as file:
            file.write(encode(event))
