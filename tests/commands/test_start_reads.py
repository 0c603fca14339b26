"""A start reads each file of MODEL_DIR and DATA_DIR once."""

import collections
import os
import re
import shutil
import sys
from pathlib import Path

from bigbird_ja import cli
from tests.commands.pretraining import STEPS

# This test's own count; at commit fdb3999 shards were listed twice and asked for their sizes.
REQUESTS = 70


def test_a_resume_on_a_bucket_asks_for_each_shard_once(runs, bucket, fake_gcs, inputs):
    for folder, name in ((Path(inputs[1]), "data"), (runs.finished, "model")):
        for path in filter(Path.is_file, folder.rglob("*")):
            fake_gcs.put(f"{bucket}/{name}/{path.relative_to(folder)}", path.read_bytes())
    fake_gcs.log(clear=True)
    places = [f"--data_dir={bucket}/data", f"--model_dir={bucket}/model"]
    # The lease is renewed once an hour: a slow machine makes no more requests.
    hour = {"BIGBIRD_JA_LEASE_SECONDS": "14400"}
    more = ["--set=checkpoints.save_every_steps=100", f"--num_train_steps={STEPS + 2}"]
    ended = runs.zygote.run(*runs.flags, *places, *more, environ=hour)
    assert ended.status == 0, ended.err
    asked = [entry["request"] for entry in fake_gcs.log()]
    assert not [one for one in asked if "googleapis" in one and "upload" in one], "TensorFlow"
    names = [re.sub(r".*/o/|.*/b-[^/]*/", "", one.split("?")[0]) for one in asked]
    data = collections.Counter(name for name in names if name.startswith("data/"))
    print(f"{len(asked)} requests of a resume: {data}")
    assert len(data) >= 4 and max(data.values()) == 1, "each shard that is needed, by one request"
    assert len(asked) <= REQUESTS


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
    assert opened["data/manifest.json"] == 1 and opened["model/config.yaml"] == 1
    del opened["model"], opened["model/lock.json"]  # the folder for fsync; the lease is taken
    assert not {name: count for name, count in opened.items() if count > 1}
