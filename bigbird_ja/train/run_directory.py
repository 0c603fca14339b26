"""MODEL_DIR before the first step: whose it is, what it holds, where training continues.

Nothing is written before everything that could be refused was looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja import config as config_lib
from bigbird_ja import storage
from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import Checkpoint, CheckpointStore
from bigbird_ja.run.model import CONFIG, TOKENIZER, check_config
from bigbird_ja.run.records import EventRecord
from bigbird_ja.train.engines.choice import Before

LOCK = "lock.json"


def check_settings(model_dir: str, config: Config) -> None:
    """Refuses a MODEL_DIR whose run has other settings; reads only.

    Raises:
        BadInput: naming each setting that differs.
    """
    path = storage.join(model_dir, CONFIG)
    if not storage.exists(path) or not _has_work(model_dir):
        return
    different = config_lib.differences(config_lib.load_resolved(path), config)
    if different:
        raise BadInput(
            f"{model_dir} holds a run of other settings ({'; '.join(different)}): use those, or"
            " another --model_dir, or --overwrite to move that run aside"
        )


def check_data(checkpoint: Checkpoint, data_fingerprint: str, model_dir: str) -> None:
    """Refuses to continue on other data than the run began with.

    Raises:
        BadInput: the fingerprints differ.
    """
    if checkpoint.meta.data_fingerprint != data_fingerprint:
        raise BadInput(
            f"{model_dir} was trained on other data (fingerprint"
            f" {checkpoint.meta.data_fingerprint[:12]}, not {data_fingerprint[:12]}): give that"
            " --data_dir, or another --model_dir, or --overwrite to move that run aside"
        )


def check_movable(model_dir: str) -> bool:
    """Whether there is a run in MODEL_DIR that `--overwrite` has to move aside.

    Raises:
        BadInput: what is there was not made by `pretrain`, or cannot be renamed.
    """
    if not _has_work(model_dir):
        return False
    advice = "choose another --model_dir, or move it yourself"
    if storage.is_remote(model_dir):
        raise BadInput(f"{model_dir}: a bucket cannot rename: {advice}")
    for name in (CONFIG, run_log.EVENTS):
        if not storage.exists(storage.join(model_dir, name)):
            raise BadInput(
                f"{model_dir}: --overwrite moves only a run of ours aside, and {name} is not"
                f" there: {advice}"
            )
    real = os.path.realpath(model_dir)
    if os.path.ismount(real) or os.path.commonpath([real, os.getcwd()]) == real:
        raise BadInput(
            f"{model_dir}: it cannot be renamed while it is the working directory or holds it, or"
            f" is a mount point: {advice}"
        )
    return True


def move_aside(model_dir: str) -> str:
    """Renames MODEL_DIR, which `check_movable` allowed; the new name. Call with the lock held."""
    path = os.path.realpath(model_dir)  # of a link the target moves, and is made anew
    number = 1
    while os.path.lexists(f"{path}.replaced-{number}"):
        number += 1
    moved = f"{path}.replaced-{number}"
    os.rename(path, moved)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(moved, LOCK))  # ours: the old run is at rest
    os.mkdir(path)
    return moved


def with_mask_unit_of(model_dir: str, config: Config, log: Callable[[str], None]) -> Config:
    """The config with the mask unit that the run in MODEL_DIR began with, where it differs.

    Earlier versions took `make_data.mask_unit` and not the data set's unit: such a run goes on as
    it began.
    """
    path = storage.join(model_dir, CONFIG)
    try:
        if not storage.exists(path) or not _has_work(model_dir):
            return config
    except NotADirectoryError:
        return config  # refused, in words, by `check_settings`
    before = config_lib.load_resolved(path).data.mask_unit
    if before is None or before == config.data.mask_unit or config.data.masking == "static":
        return config
    log(
        f"{model_dir}: this run began with data.mask_unit={before} and goes on with it; the data"
        f" set was made for {config.data.mask_unit}"
    )
    config = config_lib.copy(config)
    config.data.mask_unit = before
    return config


def write_settings(model_dir: str, config: Config, tokenizer: str) -> None:
    """Writes the resolved config and the data set's tokenizer where they are not there already."""
    text = config_lib.to_yaml(config)
    path = storage.join(model_dir, CONFIG)
    if not storage.exists(path) or storage.read_text(path) != text:
        storage.write_text(path, text)
    target = storage.join(model_dir, TOKENIZER)
    if not storage.exists(target) and storage.exists(tokenizer):
        storage.write_bytes(target, storage.read_bytes(tokenizer))


@dataclass(frozen=True)
class Resumption:
    """Where training continues."""

    checkpoint: Checkpoint | None
    interruptions: int  # ends other than `finished`, of the whole run

    @property
    def step(self) -> int:
        """The global step continued from."""
        return self.checkpoint.meta.step if self.checkpoint else 0

    @property
    def train_seconds(self) -> float:
        """Seconds of training that the checkpoint holds."""
        return self.checkpoint.meta.train_seconds if self.checkpoint else 0.0


def find_resumption(
    store: CheckpointStore, config: Config, data_fingerprint: str, log: Callable[[str], None]
) -> Resumption:
    """The newest good checkpoint, checked against config and data. Call with the lock held.

    Raises:
        BadInput: it belongs to another config or data set.
        StorageError: checkpoints exist and none is good.
    """
    checkpoint = store.latest_good()
    ends = _unfinished_starts(run_log.read_events(store.model_dir))
    if checkpoint is None:
        return Resumption(None, ends)
    check_data(checkpoint, data_fingerprint, store.model_dir)
    check_config(config, checkpoint.meta, storage.join(store.model_dir, CONFIG))
    log(f"{store.model_dir}: checkpoint {checkpoint.meta.step} verified")
    return Resumption(checkpoint, max(ends, checkpoint.meta.interruptions))


def last_start(model_dir: str) -> EventRecord | None:
    """The event of the last start of a run, or None."""
    starts = [e for e in run_log.read_events(model_dir) if e["event"] in ("started", "resumed")]
    return starts[-1] if starts else None


def engine_before(model_dir: str) -> Before | None:
    """What the run in MODEL_DIR was trained by and on; None for a new one."""
    start = last_start(model_dir) if _has_work(model_dir) else None
    if start is None:
        return None
    device = str(start.get("environment", {}).get("device", ""))
    return Before(start.get("engine", "estimator"), device)  # earlier versions had no other


def is_recorded_as_finished(model_dir: str) -> bool:
    """Whether the last start of a run was followed by the end `finished`."""
    known = ("started", "resumed", "finished", "failed", "interrupted")
    events = [event.get("event") for event in run_log.read_events(model_dir)]
    ends = [event for event in events if event in known]
    return ends[-1:] == ["finished"]


def _unfinished_starts(events: Iterable[Mapping[str, Any]]) -> int:
    """Starts that were not followed by an end as `finished`: kills leave no line of their own."""
    count, running = 0, False
    for event in events:
        if event.get("event") in ("started", "resumed"):
            count += running
            running = True
        elif event.get("event") in ("finished", "refused"):
            running = False
    return count + running


def _has_work(model_dir: str) -> bool:
    if not storage.is_remote(model_dir) and not os.path.isdir(model_dir):
        return False
    return CheckpointStore(model_dir).has_any() or bool(
        storage.exists(storage.join(model_dir, run_log.METRICS)) and run_log.read_metrics(model_dir)
    )
