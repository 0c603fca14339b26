"""MODEL_DIR before the first step: whose it is, what it holds, where training continues.

Nothing is written before everything that could be refused was looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import Checkpoint, CheckpointStore
from bigbird_ja.run.model import CONFIG, TOKENIZER, check_config, earlier_configs
from bigbird_ja.run.records import EventRecord
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import config_fingerprint, config_to_yaml, may_change_in_mid_run
from bigbird_ja.train.continuation import changes, next_batch
from bigbird_ja.train.engines.choice import Before

LOCK = "lock.json"


def settings_of(model_dir: str) -> str | None:
    """The file of settings of the run that is in MODEL_DIR; None where there is no run."""
    path = storage.join(model_dir, CONFIG)
    try:
        return path if storage.exists(path) and _has_work(model_dir) else None
    except NotADirectoryError:
        return None  # refused, in words, where MODEL_DIR is to be written


def check_settings(model_dir: str, config: Config, changed: Collection[str] = ()) -> None:
    """Refuses a MODEL_DIR whose run has other settings; reads only.

    Args:
        model_dir: MODEL_DIR.
        config: with which it is to go on.
        changed: keys that may differ: those of `--continue_with`.

    Raises:
        BadInput: naming each setting that differs, and how it can be had.
    """
    path = settings_of(model_dir)
    if path is None:
        if changed:
            raise BadInput(
                f"--continue_with: {model_dir} holds no run to go on with: check --model_dir"
            )
        return
    before = read_config(path)
    different = {key: value for key, value in changes(before, config).items() if key not in changed}
    if not different:
        return
    named = "; ".join(f"{key}: {old} -> {new}" for key, (old, new) in different.items())
    if all(map(may_change_in_mid_run, different)):
        example = " ".join(f"--continue_with {key}={new}" for key, (_, new) in different.items())
        advice = f"to change them in mid run, {example}"
    else:
        advice = f"to start another run from its weights, --init_from {model_dir} with another"
        advice += " --model_dir"
    raise BadInput(
        f"{model_dir} holds a run of other settings ({named}): use those; {advice}; or --overwrite"
        " to move that run aside"
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


def write_settings(model_dir: str, config: Config, tokenizer: str) -> None:
    """Writes the resolved config and the data set's tokenizer where they are not there already."""
    text = config_to_yaml(config)
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
    next_batch: int = 0  # of the data's order, in batches of the config

    @property
    def step(self) -> int:
        """The global step continued from."""
        return self.checkpoint.meta.step if self.checkpoint else 0

    @property
    def train_seconds(self) -> float:
        """Seconds of training that the checkpoint holds."""
        return self.checkpoint.meta.train_seconds if self.checkpoint else 0.0


def find_resumption(
    store: CheckpointStore,
    config: Config,
    data_fingerprint: str,
    log: Callable[[str], None],
    changes_it: bool = False,
) -> Resumption:
    """The newest good checkpoint, checked against config and data. Call with the lock held.

    Args:
        store: of MODEL_DIR.
        config: with which the run goes on; `check_settings` allowed it.
        data_fingerprint: of the data set.
        log: told what was found.
        changes_it: with `--continue_with`, so that the checkpoint may be of MODEL_DIR's config.

    Raises:
        BadInput: it belongs to another config or data set.
        StorageError: checkpoints exist and none is good.
    """
    checkpoint = store.latest_good()
    events = run_log.read_events(store.model_dir)
    ends = _unfinished_starts(events)
    if checkpoint is None:
        return Resumption(None, ends)
    check_data(checkpoint, data_fingerprint, store.model_dir)
    path, earlier = storage.join(store.model_dir, CONFIG), earlier_configs(events)
    if changes_it:
        earlier.add(config_fingerprint(read_config(path)))
    check_config(config, checkpoint.meta, path, earlier)
    log(f"{store.model_dir}: checkpoint {checkpoint.meta.step} verified")
    batch = next_batch(checkpoint.meta, config, events)
    return Resumption(checkpoint, max(ends, checkpoint.meta.interruptions), batch)


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
