"""Whole commands on gs://: everything made there, then again under a bucket that misbehaves.

Most would fail with TensorFlow's own behaviour, which docs/design/storage.md lists. Kills, and
faults of a bucket that last: tests/commands/test_pretrain.py and test_pretrain_ends.py.
"""

from pathlib import Path

import pytest
import yaml

from bigbird_ja import storage
from testkit import killing
from testkit.fakes.gcs_process import TOKEN

SHARDS = "GET storage.googleapis.com/"  # where TensorFlow reads them
CONFIG = {
    **killing.CONFIG,
    "tokenize": {"vocab_size": 1200},
    "make_data": {"seq_length": 64, "max_predictions_per_seq": 12, "num_shards": 4,
                  "eval_fraction": 0.1},
    "training": {**killing.CONFIG["training"], "num_train_steps": 12, "log_every_steps": 2},
    "checkpoints": {**killing.CONFIG["checkpoints"], "save_every_steps": 4},
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_what_is_made_on_a_bucket_is_the_same_under_faults_and_not_made_by_tensorflow(
    zygote, bucket, fake_gcs, sample_corpus, tmp_path
):
    config, printed = tmp_path / "tiny.yaml", []
    config.write_text(yaml.safe_dump(CONFIG))
    fake_gcs.put(f"{bucket}/ja.jsonl", Path(sample_corpus).read_bytes())

    def run(*words):
        """A command to its end, after which the bucket works again."""
        cache = {"XDG_CACHE_HOME": f"{tmp_path}/cache"}  # where make-data keeps its work
        ended = zygote.run(*words, f"--config={config}", "--json", environ=cache)
        fake_gcs.clear()
        printed.append(ended.out + ended.err)
        return ended

    def make_data(name):
        files = (f"--input={bucket}/ja.jsonl", f"--tokenizer={bucket}/tok/ja.model")
        return run("make-data", *files, f"--output_dir={bucket}/{name}", "--num_workers=1")

    def pretrain(name):
        return run("pretrain", f"--data_dir={bucket}/data", f"--model_dir={bucket}/{name}")

    ended = run("tokenize", f"--input={bucket}/ja.jsonl", f"--output_prefix={bucket}/tok/ja")
    assert ended.status == 0, ended.err
    made, trained = make_data("data"), pretrain("model")
    assert made.status == trained.status == 0, made.err + trained.err
    assert made.result["density"] > 0.97
    names = set(storage.list_files(f"{bucket}/model"))
    assert {"checkpoint", "config.yaml", "tokenizer.model", "metrics.jsonl"} <= names
    assert "lock.json" not in names
    requests = [entry["request"] for entry in fake_gcs.log()]
    assert not [r for r in requests if "googleapis" in r and "upload" in r]

    fake_gcs.fault("data-2", "reset", times=2)
    fake_gcs.fault("upload", "lost_reply", times=2, skip=3)
    fake_gcs.fault("data-2|upload", "status", p=0.2, times=-1)
    again = make_data("data-2")
    assert again.status == 0, again.err
    assert again.result["fingerprint"] == made.result["fingerprint"]

    fake_gcs.fault("/o/again|/o[?].*name=|upload", "status", p=0.1, times=-1)
    fake_gcs.fault(SHARDS, "truncate", bytes=500, times=2)
    fake_gcs.fault("upload", "lost_reply", times=3, skip=2)
    again = pretrain("again")
    assert again.status == 0 and again.err.count("trying again") <= 1, again.err
    assert killing.digest(f"{bucket}/again") == killing.digest(f"{bucket}/model")

    for fault in ({"do": "short", "bytes": 2000}, {"do": "status", "code": 404}):
        fake_gcs.fault(SHARDS, times=-1, **fault)
        ended = pretrain("lasting")
        assert (ended.status, ended.result["reason"]) == (74, "io_error"), ended.err
        assert "tfrecord" in ended.err.splitlines()[-1] and "Traceback" not in ended.err

    objects = [f"{bucket}/{name}" for name in fake_gcs.names(bucket.removeprefix("gs://"))]
    assert not [path for path in objects if TOKEN.encode() in fake_gcs.get(path)]
    assert TOKEN not in "".join(printed)
