"""TensorBoard's event files: their encoding, and the files of evaluations."""

from collections.abc import Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import tfrecords


def encode(*events: Any) -> bytes:
    """Return events as an event file has them; tf.summary needs TensorBoard's package."""
    return tfrecords.frame([event.SerializeToString() for event in events])


def scalars_event(step: int, wall_time: float, values: Mapping[str, Any]) -> Any:
    """Return an event with the numbers among `values`, by tag; `wall_time` in UNIX seconds."""
    from tensorflow.core.util import event_pb2

    event = event_pb2.Event(step=step, wall_time=wall_time)
    for tag, value in values.items():
        if isinstance(value, (int, float)):
            event.summary.value.add(tag=tag, simple_value=float(value))
    return event


def write_tensorboard(
    model_dir: str, step: int, result: Mapping[str, Any], wall_time: float
) -> None:
    """Add an evaluation's numbers, `eval/...`, to the event files of `MODEL_DIR/eval/`.

    TensorBoard shows that folder as another run, so that evaluating an older checkpoint later hides
    nothing. `wall_time`: UNIX seconds.
    """
    from tensorflow.core.util import event_pb2

    omitted = ("step", "time", "max_batches")
    tags = {f"eval/{key}": value for key, value in result.items() if key not in omitted}
    start = event_pb2.Event(file_version="brain.Event:2")
    storage.make_directory(storage.join(model_dir, "eval"))
    # The same name if the evaluation is repeated, another one for each step.
    path = storage.join(model_dir, f"eval/events.out.tfevents.{step:012d}.eval")
    storage.write_bytes(path, encode(start, scalars_event(step, wall_time, tags)))
