"""Whole commands on gs://: everything made there, killed there, and under a bucket that misbehaves.

Most would fail with TensorFlow's own behaviour, which docs/design/storage.md lists.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bigbird_ja import storage
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from testkit import killing
from testkit.fakes.gcs_process import TOKEN, FakeGcs
from testkit.zygote import Command, Ended, Zygote

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
BASE, STEPS, SAVE_EVERY = "gs://road", 12, 4
MEDIA_DOOR = "GET storage.googleapis.com/"  # where TensorFlow reads the shards
CONFIG = {
    **killing.CONFIG,
    "tokenize": {"vocab_size": 1200},
    "make_data": {"seq_length": 64, "max_predictions_per_seq": 12, "num_shards": 4,
                  "eval_fraction": 0.1},
    "training": {**killing.CONFIG["training"], "num_train_steps": STEPS, "log_every_steps": 2},
    "checkpoints": {**killing.CONFIG["checkpoints"], "save_every_steps": SAVE_EVERY,
                    "keep_last": 3},
}  # fmt: skip


class Road:
    """A bucket with a corpus, a tokenizer, a data set and a finished run, and commands on it."""

    def __init__(self, zygote: Zygote, fake: FakeGcs, scratch: Path) -> None:
        self.zygote, self.fake = zygote, fake
        self._config, self._cache = scratch / "tiny.yaml", scratch / "cache"
        self._config.write_text(yaml.safe_dump(CONFIG))
        fake.create_bucket("road")
        fake.log(clear=True)
        corpus = scratch / "ja.jsonl"
        self.printed = zygote.run("sample", f"--output={corpus}", "--documents=30", "--seed=1").err
        fake.put(f"{BASE}/ja.jsonl", corpus.read_bytes())
        self.finish("tokenize", f"--input={BASE}/ja.jsonl", f"--output_prefix={BASE}/tok/ja")
        self.made = self.finish(*self.make_data("data"))
        self.finish(*self.pretrain("reference"))
        self.digest = killing.digest(f"{BASE}/reference")
        self.requests = [entry["request"] for entry in fake.log()]

    def start(self, *words: str, **how: Any) -> Command:
        environ = {"XDG_CACHE_HOME": str(self._cache)}  # where make-data keeps its work
        return self.zygote.start(
            *words, "--config", str(self._config), "--json", environ=environ, **how
        )

    def run(self, *words: str) -> Ended:
        """A command to its end, after which the bucket works again."""
        ended = self.start(*words).wait()
        self.fake.clear()
        return ended

    def finish(self, *words: str) -> dict[str, Any]:
        ended = self.run(*words)
        self.printed += ended.out + ended.err
        assert ended.status == 0, ended.err
        return ended.result

    def make_data(self, name: str) -> list[str]:
        return ["make-data", f"--input={BASE}/ja.jsonl", f"--tokenizer={BASE}/tok/ja.model",
                f"--output_dir={BASE}/{name}", "--num_workers=1"]  # fmt: skip

    def pretrain(self, name: str) -> list[str]:
        return ["pretrain", f"--data_dir={BASE}/data", f"--model_dir={BASE}/{name}"]


@pytest.fixture(scope="module")
def road(
    zygote: Zygote, fake_gcs: FakeGcs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Road]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fake_gcs.env.items():
            if name.startswith(("STORAGE_", "BIGBIRD_")):
                patch.setenv(name, value)
        yield Road(zygote, fake_gcs, tmp_path_factory.mktemp("road"))


def test_everything_is_made_on_the_bucket_and_not_by_tensorflow(road: Road) -> None:
    assert road.made["density"] > 0.97
    names = storage.list_files(f"{BASE}/reference")
    files = {"checkpoint", "config.yaml", "tokenizer.model", "metrics.jsonl", "events.jsonl"}
    assert files <= set(names) and "lock.json" not in names
    assert not [r for r in road.requests if "googleapis" in r and "upload" in r]
    objects = [f"{BASE}/{name}" for name in road.fake.names("road")]
    assert not [path for path in objects if TOKEN.encode() in road.fake.get(path)]
    assert TOKEN not in road.printed


def test_killed_in_a_save_and_resumed_under_faults_ends_with_the_same_weights(road: Road) -> None:
    killed = f"{BASE}/killed"
    running = road.start(*road.pretrain("killed"), hang_at=("between-files", 5))  # second save
    running.wait_for(running.hung)
    running.send(signal.SIGKILL)
    assert running.wait().status == -signal.SIGKILL
    assert CheckpointStore(killed).steps() == [SAVE_EVERY]
    road.fake.fault("/o/killed|/o[?].*name=|upload", "status", p=0.1, times=-1)
    road.fake.fault(MEDIA_DOOR, "truncate", bytes=500, times=2)
    road.fake.fault("upload", "lost_reply", times=3, skip=2)
    road.fake.fault("model.ckpt.*alt=media", "reset", bytes=1000, times=2)
    ended = road.run(*road.pretrain("killed"))
    assert ended.status == 0 and ended.result["global_step"] == STEPS, ended.err
    assert ended.result["interruptions"] == 1
    logged = [record["step"] for record in run_log.read_metrics(killed)]
    assert logged == list(range(2, STEPS + 1, 2)), "each step once"
    assert CheckpointStore(killed).steps()[-1] == STEPS
    assert killing.digest(killed) == road.digest
    events = [event["event"] for event in run_log.read_events(killed)]
    assert "resumed" in events and events[-1] == "finished"
    assert ended.err.count("trying again") <= 1


def test_make_data_under_every_passing_fault_makes_the_same_bytes(road: Road) -> None:
    road.fake.fault("data-f", "reset", times=2)
    road.fake.fault("upload", "lost_reply", times=2, skip=3)
    road.fake.fault("data-f|upload", "status", p=0.2, times=-1)
    made = road.finish(*road.make_data("data-f"))
    assert made["fingerprint"] == road.made["fingerprint"]
