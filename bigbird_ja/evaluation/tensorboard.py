"""TensorBoard's event file of an evaluation."""

from collections.abc import Mapping
from typing import Any

from bigbird_ja.data import tfrecords


def encode(*events: Any) -> bytes:
    """Encode events as an event file's content, without importing the package `tensorboard`."""
    return tfrecords.frame_records([event.SerializeToString() for event in events])


def make_scalars_event(step: int, wall_time: float, values: Mapping[str, Any]) -> Any:
    """Return a TensorBoard event with the numbers in `values`, a dict by tag.

    Values that are not numbers are left out. `wall_time` is in UNIX seconds.
    """
    from tensorflow.core.util import event_pb2

    event = event_pb2.Event(step=step, wall_time=wall_time)
    for tag, value in values.items():
        if isinstance(value, (int, float)):
            event.summary.value.add(tag=tag, simple_value=float(value))
    return event


def make_evaluation_file(
    step: int, result: Mapping[str, Any], wall_time: float
) -> tuple[str, bytes]:
    """Return an event file with an evaluation's numbers: its path in MODEL_DIR, and its content.

    TensorBoard shows the folder `eval/` as a separate run. In the folder of the training's own
    events, an evaluation of an older checkpoint would make TensorBoard hide the training steps
    after this checkpoint. A repeated evaluation replaces the file.

    Args:
        step: global step.
        result: results of `evaluate_model`.
        wall_time: UNIX seconds.
    """
    from tensorflow.core.util import event_pb2

    omitted = ("step", "time", "max_batches")
    tags = {f"eval/{key}": value for key, value in result.items() if key not in omitted}
    start = event_pb2.Event(file_version="brain.Event:2")
    data = encode(start, make_scalars_event(step, wall_time, tags))
    return f"eval/events.out.tfevents.{step:012d}.eval", data
