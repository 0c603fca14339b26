from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.data import adopt, full_check, pipeline, verify
from bigbird_ja.process.errors import BadInput

IDS = adopt.Ids(200, {"pad": 0, "cls": 2, "sep": 3, "mask": 4})


def write_classic(path, count, length=64, most=9, drop=()):
    """Records as BERT's create_pretraining_data writes them."""
    rng = np.random.default_rng(count)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(count):
            end = int(rng.integers(20, length))
            tokens = rng.integers(5, 200, length)
            tokens[[0, 10, end]] = 2, 3, 3
            tokens[end + 1 :] = 0
            positions = np.zeros(most, int)
            positions[:4] = np.sort(rng.choice(np.arange(11, end), 4, replace=False))
            ids = np.where(positions > 0, tokens[positions], 0)
            tokens[positions[:4]] = 4
            integers = {
                "input_ids": tokens,
                "input_mask": tokens > 0,
                "segment_ids": (np.arange(length) > 10) & (tokens > 0),
                "masked_lm_positions": positions,
                "masked_lm_ids": ids,
                "next_sentence_labels": [int(rng.integers(2))],
            }
            features = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=np.int64(value)))
                for name, value in integers.items()
                if name not in drop
            }
            weights = tf.train.FloatList(value=(positions > 0).astype(float))
            features["masked_lm_weights"] = tf.train.Feature(float_list=weights)
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def test_records_made_elsewhere_are_read_by_the_pipeline(tmp_path):
    names = [f"pretrain.tfrecord-{i:05d}-of-00003" for i in range(3)]
    for name, count in zip(names, (5, 3, 9), strict=True):
        write_classic(tmp_path / name, count)
    write_classic(tmp_path / "test.tfrecord", 4)
    made = adopt.adopt(str(tmp_path), names, ["test.tfrecord"], IDS)
    assert (made.seq_length, made.max_predictions_per_seq, made.nsp) == (64, 9, True)
    assert (made.train.sequences, made.eval.sequences, made.num_readers) == (17, 4, 1)
    assert made.train.predictions == 17 * 4
    assert verify.fast_check(str(tmp_path)) == made
    assert full_check.full_check(made, str(tmp_path))[0] == []
    dataset = pipeline.batches(
        made, str(tmp_path), seed=1, global_batch_size=4, shuffle_window=2, num_steps=5
    )
    for batch in dataset.as_numpy_iterator():
        assert (batch["masked_lm_weights"].sum(1) == 4).all()
        assert batch["segment_ids"].max() == 1 and batch["document_ids"].max() == 2
    assert len(list(pipeline.eval_batches(made, str(tmp_path), batch_size=3))) == 2


def test_equal_shards_keep_several_readers(tmp_path):
    names = [f"{i}.tfrecord" for i in range(4)]
    for name in names:
        write_classic(tmp_path / name, 3)
    assert adopt.adopt(str(tmp_path), names, [], IDS, nsp=False).num_readers == 4


@pytest.mark.parametrize("what", ["length", "feature", "damaged", "empty", "ids", "manifest"])
def test_what_cannot_be_adopted_is_refused(tmp_path, what):
    write_classic(tmp_path / "a.tfrecord", 2)
    if what == "length":
        write_classic(tmp_path / "b.tfrecord", 2, length=32)
    elif what == "feature":
        write_classic(tmp_path / "b.tfrecord", 2, drop=("masked_lm_ids",))
    elif what == "damaged":
        (tmp_path / "b.tfrecord").write_bytes((tmp_path / "a.tfrecord").read_bytes()[:-3])
    elif what == "manifest":
        (tmp_path / "manifest.json").write_text("{}")
    else:
        (tmp_path / "b.tfrecord").write_bytes(b"")
    names = ["a.tfrecord"] if what == "ids" else ["a.tfrecord", "b.tfrecord"]
    ids = adopt.Ids(100, IDS.special_ids) if what == "ids" else IDS
    with pytest.raises(BadInput, match=r"tfrecord|manifest"):
        adopt.adopt(str(tmp_path), names, [], ids)
    assert what == "manifest" or not (tmp_path / "manifest.json").exists()


def test_a_tokenizer_of_the_users_is_not_replaced(tmp_path):
    write_classic(tmp_path / "a.tfrecord", 2)
    (tmp_path / "tokenizer.model").write_bytes(b"mine")
    ids = adopt.Ids(200, IDS.special_ids, tokenizer=b"another")
    with pytest.raises(BadInput, match="move it away"):
        adopt.adopt(str(tmp_path), ["a.tfrecord"], [], ids)
    assert (tmp_path / "tokenizer.model").read_bytes() == b"mine"
    assert adopt.adopt(
        str(tmp_path), ["a.tfrecord"], [], adopt.Ids(200, IDS.special_ids, tokenizer=b"mine")
    ).tokenizer_sha256


def test_records_without_tokens_are_refused(tmp_path):
    names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    empty = {name: tf.train.Feature(int64_list=tf.train.Int64List()) for name in names}
    example = tf.train.Example(features=tf.train.Features(feature=empty))
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(BadInput, match="no tokens"):
        adopt.adopt(str(tmp_path), ["a.tfrecord"], [], IDS)
