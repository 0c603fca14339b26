"""A start reads each file of MODEL_DIR and DATA_DIR once, and asks a bucket half as often."""

import collections
import dataclasses
import os
import re
import shutil
import sys

import pytest

from bigbird_ja import cli, storage
from testkit import synthetic

pytestmark = pytest.mark.timeout(300)
# This test's own count at commit fdb3999, where DATA_DIR was listed twice and its shards' sizes
# were asked for: the whole command, from step 2 of 4 to its end.
REQUESTS_AT_FDB3999 = 144


def upload(folder, place):
    """Puts a data set of 32 shards on a bucket, with the checksums that listings state."""
    made = synthetic.write(folder, (4,) * 32)
    shards = {
        split: tuple(
            dataclasses.replace(shard, crc32c=storage.crc32c_of_file(str(folder / shard.name))[0])
            for shard in made.shards(split)
        )
        for split in ("train", "eval")
    }
    stated = dataclasses.replace(made, train_shards=shards["train"], eval_shards=shards["eval"])
    synthetic.save(stated, str(folder))
    (folder / "tokenizer.model").write_bytes(b"not read by training")
    for path in folder.iterdir():
        storage.upload(str(path), f"{place}/{path.name}")


def test_a_resume_on_a_bucket_asks_half_as_often(zygote, bucket, fake_gcs, inputs, tmp_path):
    upload(tmp_path / "data", f"{bucket}/data")
    flags = ["pretrain", f"--config={inputs[0]}", f"--data_dir={bucket}/data", "--engine=pjrt"]
    flags += [f"--model_dir={bucket}/model", "--set=checkpoints.save_every_steps=100"]
    for steps in (2, 4):
        fake_gcs.log(clear=True)
        # The lease is renewed once an hour: a slow machine makes no more requests.
        hour = {"BIGBIRD_JA_LEASE_SECONDS": "14400"}
        ended = zygote.run(*flags, f"--num_train_steps={steps}", environ=hour)
        assert ended.status == 0, ended.err
        asked = [entry["request"] for entry in fake_gcs.log()]
        assert not [one for one in asked if "googleapis" in one and "upload" in one], "TensorFlow"
    requests = [one.split("?")[0] for one in asked]
    names = [re.sub(r".*/o/|.*/b-[^/]*/", "", one) for one in requests]
    data = collections.Counter(name for name in names if name.startswith("data/"))
    print(f"{len(requests)} requests of a resume, {REQUESTS_AT_FDB3999} at fdb3999: {data}")
    assert len(data) >= 8 and max(data.values()) == 1, "each shard that is needed, by one request"
    assert 2 * len(requests) <= REQUESTS_AT_FDB3999


def test_a_start_opens_no_file_twice(runs, inputs, tmp_path, capsys):
    data = shutil.copytree(inputs[1], tmp_path / "data")
    flags = [*runs.copied(tmp_path), "--data_dir", str(data)]
    opened = collections.Counter()
    is_counted = True

    def note(event, arguments):
        if event == "open" and is_counted and isinstance(arguments[0], str):
            path, mode = os.path.abspath(arguments[0]), arguments[1]
            if path.startswith(str(tmp_path)) and (mode is None or "r" in str(mode)):
                opened[os.path.relpath(path, tmp_path)] += 1

    sys.addaudithook(note)
    assert cli.run_command_line(flags) == 0, capsys.readouterr().err
    is_counted = False
    print(f"opened by the start of a finished run: {opened.most_common(12)}")
    assert opened["data/manifest.json"] == 1 and opened["model/config.yaml"] == 1
    del opened["model"], opened["model/lock.json"]  # the folder for fsync; the lease is taken
    assert not {name: count for name, count in opened.items() if count > 1}
