"""What TensorFlow's own gs:// client does on the fake bucket, as one child process tells it.

Run as `python -m testkit.fakes.tensorflow_program URL BUCKET [prepared]`; prints one JSON object.
`URL` is the fake's plain door, by which faults are ordered.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

if sys.argv[3:] == ["prepared"]:
    from bigbird_ja.process import tensorflow_env

    tensorflow_env.prepare(os.environ)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from testkit.fakes.gcs_process import FakeBucket

FAKE, BASE = FakeBucket(sys.argv[1]), f"gs://{sys.argv[2]}"
RECORD = b"r" * 84  # 100 bytes in the file, with length and checksums


def fault(match: str, do: str, **how: Any) -> None:
    """Orders a fault."""
    FAKE.fault(match, do, **how)


def outcome(action: Callable[[], Any]) -> Any:
    """The result, or the exception's name."""
    try:
        return action()
    except Exception as error:
        return type(error).__name__
    finally:
        FAKE.clear()


def write(name: str, data: bytes) -> None:
    """By TensorFlow."""
    with tf.io.gfile.GFile(f"{BASE}/{name}", "wb") as file:
        file.write(data)


def read(name: str) -> bytes:
    """By TensorFlow."""
    with tf.io.gfile.GFile(f"{BASE}/{name}", "rb") as file:
        return file.read()


def write_records(name: str, record: bytes, count: int) -> None:
    """A TFRecord object."""
    with tf.io.TFRecordWriter(f"{BASE}/{name}") as writer:
        for _ in range(count):
            writer.write(record)


def count_records(name: str) -> int:
    """Records that TFRecordDataset gives."""
    return sum(1 for _ in tf.data.TFRecordDataset(f"{BASE}/{name}", buffer_size=1000))


def files() -> dict[str, Any]:
    """Plain work with files, no faults."""
    write("d/a", b"one")
    write("d/empty", b"")
    with tf.io.gfile.GFile(f"{BASE}/d/a", "ab") as file:
        file.write(b"two")
    tf.io.gfile.makedirs(f"{BASE}/made/deep")
    tf.io.gfile.rename(f"{BASE}/d/a", f"{BASE}/d/b")
    tf.io.gfile.copy(f"{BASE}/d/b", f"{BASE}/d/c")
    listed = sorted(tf.io.gfile.listdir(f"{BASE}/d"))
    found = tf.io.gfile.glob(f"{BASE}/d/*")
    tf.io.gfile.rmtree(f"{BASE}/made")
    return {
        "b": read("d/b").decode(),
        "from python": read("from-python").decode(),
        "listed": listed,
        "glob": len(found),
        "exists": tf.io.gfile.exists(f"{BASE}/d/c"),
        "gone": tf.io.gfile.exists(f"{BASE}/d/a"),
    }


def passing_faults() -> dict[str, Any]:
    """Faults that TensorFlow survives."""
    data = os.urandom(4 << 20)
    results = {}
    for name, rule in {
        "503": {"match": "upload", "do": "status", "times": 2},
        "reset": {"match": "PUT .*upload_id", "do": "reset", "bytes": 1500000},
        "lost": {"match": "PUT .*upload_id", "do": "lost_reply"},
    }.items():
        fault(**rule)
        write(name, data)
        results[name] = outcome(lambda name=name: read(name) == data)
    fault("GET .*/503", "truncate", bytes=1 << 20)
    results["truncated"] = outcome(lambda: read("503") == data)
    return results


def wrong_ends() -> dict[str, Any]:
    """What TensorFlow gets wrong: reproduced, so that we know what we guard against."""
    write_records("shard", RECORD, 1000)
    fault("GET .*/shard", "short", bytes=50_000, times=-1)
    results = {"short": outcome(lambda: count_records("shard"))}
    write("checkpoint", b'model_checkpoint_path: "model.ckpt-100"\n')
    write("model.ckpt-100.index", b"x")
    for code in (403, 503):
        fault("checkpoint", "status", code=code, times=-1)
        results[f"latest {code}"] = outcome(lambda: tf.train.latest_checkpoint(BASE))
    fault(".", "status", times=-1)
    results["exhausted"] = outcome(lambda: read("shard"))
    for name in ("old", "new"):  # each record fills the read buffer of 1 MiB
        write_records(name, name[:1].encode() * ((1 << 20) - 16), 4)
    records = iter(tf.data.TFRecordDataset(f"{BASE}/old", buffer_size=1 << 10))
    kinds = [next(records).numpy()[:1].decode()]
    tf.io.gfile.copy(f"{BASE}/new", f"{BASE}/old", overwrite=True)
    results["replaced"] = outcome(lambda: kinds + [r.numpy()[:1].decode() for r in records])
    return results


if __name__ == "__main__":
    result = wrong_ends()
    if sys.argv[3:] != ["prepared"]:
        result = {**files(), **passing_faults(), **result}
    print(json.dumps(result))
