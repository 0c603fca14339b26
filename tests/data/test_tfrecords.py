import io

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import tfrecords


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2**28 - 1), min_size=3, max_size=3), min_size=1, max_size=9)
)
def test_varints_are_read_by_protobuf(rows):
    values = np.array(rows)
    encoded = tfrecords.encode_static({"x": values})
    for record, row in zip(encoded, rows, strict=True):
        example = tf.train.Example.FromString(record)
        assert list(example.features.feature["x"].int64_list.value) == row


def test_frames_are_read_by_tensorflow_and_read_tensorflows_files(tmp_path):
    bodies = [b"", b"a" * 10, bytes(range(256)) * 40]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(tfrecords.frame_records(bodies))
    assert [r.numpy() for r in tf.data.TFRecordDataset(str(path))] == bodies
    with tf.io.TFRecordWriter(str(path)) as writer:
        for body in bodies:
            writer.write(body)
    assert list(tfrecords.read_frames(path.open("rb"))) == bodies


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_flipped_or_missing_byte_is_detected(data):
    whole = tfrecords.frame_records([b"hello", b"", b"world" * 5])
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = whole[:at]
    boundaries = (0, 21, 37)
    if bytes(damaged) in [whole[:b] for b in boundaries]:
        assert len(list(tfrecords.read_frames(io.BytesIO(damaged)))) < 3
        return
    with pytest.raises(tfrecords.DamagedRecord, match=r"record|truncated"):
        list(tfrecords.read_frames(io.BytesIO(bytes(damaged))))
