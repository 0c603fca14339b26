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
AFTER_FIRST_SAVE = ("between-files", 3)  # two files and the sidecar are there
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

    def hang(self, at: tuple[str, int], *words: str) -> Command:
        """Starts a command and waits until it stands still at an instant of its training."""
        running = self.start(*words, hang_at=at)
        running.wait_for(running.hung)
        return running

    def make_data(self, name: str) -> list[str]:
        return ["make-data", f"--input={BASE}/ja.jsonl", f"--tokenizer={BASE}/tok/ja.model",
                f"--output_dir={BASE}/{name}", "--num_workers=1"]  # fmt: skip

    def pretrain(self, name: str, data: str = "data") -> list[str]:
        return ["pretrain", f"--data_dir={BASE}/{data}", f"--model_dir={BASE}/{name}"]

    def copy(self, source: str, target: str) -> None:
        for name in storage.list_files(f"{BASE}/{source}"):
            self.fake.put(f"{BASE}/{target}/{name}", self.fake.get(f"{BASE}/{source}/{name}"))


@pytest.fixture(scope="module")
def road(
    zygote: Zygote, fake_gcs: FakeGcs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Road]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fake_gcs.env.items():
            if name.startswith(("STORAGE_", "BIGBIRD_")):
                patch.setenv(name, value)
        yield Road(zygote, fake_gcs, tmp_path_factory.mktemp("road"))


@pytest.fixture(autouse=True)
def without_faults(fake_gcs: FakeGcs) -> Iterator[None]:
    yield
    fake_gcs.clear()


def saved(name: str) -> list[int]:
    return CheckpointStore(f"{BASE}/{name}").steps()


def events(name: str) -> list[str]:
    return [event["event"] for event in run_log.read_events(f"{BASE}/{name}")]


def assert_ended(ended: Ended, status: int, reason: str, *words: str) -> None:
    """One line that has `words`, the status and reason of the contract, no traceback."""
    assert (ended.status, ended.result["reason"]) == (status, reason), ended.err
    assert "Traceback" not in ended.err
    last = ended.err.rstrip().splitlines()[-1]
    assert last.startswith("bigbird-ja: ") and all(word in last for word in words), last


def assert_finished(road: Road, ended: Ended, name: str) -> None:
    """Trained to the end with the weights of the reference, each step logged once."""
    assert ended.status == 0 and ended.result["global_step"] == STEPS, ended.err
    logged = [record["step"] for record in run_log.read_metrics(f"{BASE}/{name}")]
    assert logged == list(range(2, STEPS + 1, 2)) and saved(name)[-1] == STEPS
    assert killing.digest(f"{BASE}/{name}") == road.digest


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
    running = road.hang(("between-files", 5), *road.pretrain("killed"))  # of the second save
    running.send(signal.SIGKILL)
    assert running.wait().status == -signal.SIGKILL and saved("killed") == [SAVE_EVERY]
    road.fake.fault("/o/killed|/o[?].*name=|upload", "status", p=0.1, times=-1)
    road.fake.fault(MEDIA_DOOR, "truncate", bytes=500, times=2)
    road.fake.fault("upload", "lost_reply", times=3, skip=2)
    road.fake.fault("model.ckpt.*alt=media", "reset", bytes=1000, times=2)
    ended = road.run(*road.pretrain("killed"))
    assert_finished(road, ended, "killed")
    assert ended.result["interruptions"] == 1
    assert "resumed" in events("killed") and events("killed")[-1] == "finished"
    assert ended.err.count("trying again") <= 1


def test_an_unreadable_checkpoint_list_never_restarts_a_run(road: Road) -> None:
    road.copy("reference", "unreadable")
    for name in storage.list_files(f"{BASE}/unreadable"):
        if f"ckpt-{STEPS}." in name:
            storage.delete(f"{BASE}/unreadable/{name}")
    before = killing.digest(f"{BASE}/unreadable")
    for code, status, reason in ((403, 2, "bad_input"), (503, 74, "io_error")):
        road.fake.fault("o/unreadable/checkpoint|prefix=unreadable", "status", code=code, times=-1)
        ended = road.run(*road.pretrain("unreadable"))
        assert_ended(ended, status, reason, f"{BASE}/unreadable", str(code))
        assert killing.digest(f"{BASE}/unreadable") == before
    assert_finished(road, road.run(*road.pretrain("unreadable")), "unreadable")


@pytest.mark.parametrize(
    ("at", "fault", "words", "steps"),
    [
        (None, ("googleapis.com.*tfrecord", "status"), "503 tfrecord", []),
        (None, (MEDIA_DOOR, "short"), "tfrecord", []),
        (None, (MEDIA_DOOR, "gone"), "tfrecord 404", []),
        (AFTER_FIRST_SAVE, (".", "expired"), f"{BASE}/lasting 401", [SAVE_EVERY]),
        (AFTER_FIRST_SAVE, ("upload", "status"), f"{BASE}/lasting 503", [SAVE_EVERY]),
    ],
    ids=["unavailable", "short", "gone", "expired", "no uploads"],
)
def test_a_lasting_fault_ends_the_run_with_the_last_checkpoint_intact(
    road: Road, at: tuple[str, int] | None, fault: tuple[str, str], words: str, steps: list[int]
) -> None:
    for name in road.fake.names("road", "lasting/"):
        road.fake.remove(f"{BASE}/{name}")
    running = road.hang(at, *road.pretrain("lasting")) if at else None
    kinds = {"short": {"bytes": 2000}, "gone": {"code": 404}, "expired": {"code": 401}}
    match, kind = fault
    how = kinds.get(kind, {})
    road.fake.fault(match, "status" if "code" in how else kind, times=-1, **how)
    if running:
        running.hung.unlink()
    ended = running.wait() if running else road.run(*road.pretrain("lasting"))
    road.fake.clear()
    assert_ended(ended, 74, "io_error", *words.split())
    assert saved("lasting") == steps


def test_a_shard_that_is_replaced_by_one_of_the_same_length_is_noticed(road: Road) -> None:
    road.copy("data", "data-2")
    running = road.hang(AFTER_FIRST_SAVE, *road.pretrain("replaced", "data-2"))
    path = f"{BASE}/data-2/train-00000-of-00004.tfrecord"
    road.fake.put(path, road.fake.get(path))
    running.hung.unlink()
    assert_ended(running.wait(), 74, "io_error", path)
    assert saved("replaced") == [SAVE_EVERY]


def test_make_data_under_every_passing_fault_makes_the_same_bytes(road: Road) -> None:
    road.fake.fault("data-f", "reset", times=2)
    road.fake.fault("upload", "lost_reply", times=2, skip=3)
    road.fake.fault("data-f|upload", "status", p=0.2, times=-1)
    made = road.finish(*road.make_data("data-f"))
    assert made["fingerprint"] == road.made["fingerprint"]
