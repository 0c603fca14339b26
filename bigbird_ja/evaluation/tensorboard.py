"""Results of evaluations in TensorBoard's event files."""

from collections.abc import Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import tfrecords


def write_tensorboard(
    model_dir: str, step: int, result: Mapping[str, Any], wall_time: float
) -> None:
    """Add an evaluation's numbers, `eval/...`, to the event files of `MODEL_DIR/eval/`.

    TensorBoard shows that folder as another run, so that evaluating an older checkpoint later hides
    nothing. `wall_time`: UNIX seconds.
    """
    from tensorflow.core.util import event_pb2

    event = event_pb2.Event(step=step, wall_time=wall_time)
    for key, value in result.items():
        if isinstance(value, (int, float)) and key not in ("step", "time", "max_batches"):
            event.summary.value.add(tag=f"eval/{key}", simple_value=float(value))
    # The same name if the evaluation is repeated, another one for each step. Framed here, as
    # tf.summary needs TensorBoard's package.
    events = (event_pb2.Event(file_version="brain.Event:2"), event)
    data = tfrecords.frame([each.SerializeToString() for each in events])
    storage.make_directory(storage.join(model_dir, "eval"))
    path = storage.join(model_dir, f"eval/events.out.tfevents.{step:012d}.eval")
    storage.write_bytes(path, data)
