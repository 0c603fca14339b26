"""Open MODEL_DIR once, check it before anything is written, lock it while a run writes to it.

A run that continues may differ from how it began: in length, and by `--set` in settings.
The optimiser's state is kept. Where the batch size changes, the order of the data is cut into
batches of the new size: the next batch begins at the first multiple of that size behind every
record that was seen, so none is seen twice and less than one batch is left out.
"""

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator
from functools import partial

from bigbird_ja import storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import STATE, CheckpointStore, Meta
from bigbird_ja.run.model import CONFIG, TOKENIZER, check_config, earlier_configs
from bigbird_ja.run.records import EventRecord
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import change_of, changes, flatten
from bigbird_ja.storage import outputs
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import Lease, held, holder_of
from bigbird_ja.storage.ownership import MARK, Owned
from bigbird_ja.train.job import Dependencies, Resumption

LOCK = "lock.json"
_CHECKPOINT = re.compile(rf"(damaged-(\d+-)?)?model\.ckpt-\d+\..*|{STATE}")
_VISIBLE_SECONDS = 15.0  # until a file that one host writes is seen by the others, on a shared disk
_POLL_SECONDS = 0.5
# Files that change all the time.
_LOGS = (STATE, run_log.EVENTS, run_log.HEARTBEAT, run_log.METRICS, run_log.EVAL)
_KIND = "run"
_ADVICE = (
    f"a copied run needs its {MARK} (`cp -r RUN/. DIR`); else give --model_dir an empty folder;"
    " --init_from takes the weights of a TensorFlow checkpoint or of a Hugging Face folder"
)


class RunDir:
    """MODEL_DIR as it was when it was opened.

    Args:
        path: MODEL_DIR, on disk or gs://.
        overwrite: reads only the names of its files: the run in it is not continued.

    Attributes:
        files: what it holds, by name.
        settings: config and data of the run in it; None where there is no run.
        events: of that run; read once the folder is locked, since a supervisor may add some.

    Raises:
        BadInput: it cannot be a folder, holds what `pretrain` did not make, or its settings cannot
            be read.
    """

    def __init__(self, path: str, overwrite: bool = False) -> None:
        outputs.check_folder_place(path, "--model_dir")
        self.path, self.files, self._overwrite = path, storage.list_stats(path), overwrite
        self._owned = outputs.check_folder(path, "--model_dir", _KIND, _ADVICE)
        self.settings: tuple[Config, Data] | None = None
        if not overwrite and CONFIG in self.files and self.has_work:
            self.settings = read_config(self.join(CONFIG))
        self.events = run_log.EventLog(path)

    def join(self, name: str) -> str:
        """Return the path of a file in MODEL_DIR."""
        return storage.join(self.path, name)

    @property
    def has_work(self) -> bool:
        """Tell whether a checkpoint, good or not, or a logged step is there."""
        metrics = self.files.get(run_log.METRICS)
        return self._has_checkpoints() or bool(metrics and metrics.size)

    @property
    def is_continued(self) -> bool:
        """Tell whether the run in it is to be continued from a checkpoint."""
        return self._has_checkpoints() and not self._overwrite

    def _has_checkpoints(self) -> bool:
        """Tell whether a checkpoint, good or not, is or was there."""
        return any(_CHECKPOINT.fullmatch(name) for name in self.files)

    def last_start(self) -> EventRecord | None:
        """Return the event of the last start of a run, or None."""
        starts = [e for e in self.events.records if e["event"] in ("started", "resumed")]
        return starts[-1] if starts else None

    def is_recorded_as_finished(self) -> bool:
        """Tell whether the end `finished` followed the last start of a run."""
        known = ("started", "resumed", "finished", "failed", "interrupted")
        return [e["event"] for e in self.events.records if e["event"] in known][-1:] == ["finished"]

    # Checks, before anything is written.

    def check_settings(self, config: Config, data: Data, stated: Collection[str] = ()) -> None:
        """Refuse settings other than those of the run that is there.

        Args:
            config: to continue with.
            data: to continue with.
            stated: keys that the command line sets: of these, settings of `training` may differ.

        Raises:
            BadInput: names each setting that differs, and the flag that would change it.
        """
        different = changes(self.settings, (config, data)) if self.settings else {}
        is_change = {key: change_of(key) == "logged" for key in different}
        different = {k: v for k, v in different.items() if not (is_change[k] and k in stated)}
        if not different:
            return
        named = "; ".join(f"{key}: {old} -> {new}" for key, (old, new) in different.items())
        advice = f"to start another run from its weights, --init_from {self.path} with another"
        advice += " --model_dir"
        if all(is_change[key] for key in different):
            flags = " ".join(f"--set {key}={new}" for key, (_, new) in different.items())
            advice = f"to change them in mid run, {flags}"
        raise BadInput(
            f"{self.path} holds a run of other settings ({named}): use those; {advice}; or"
            " --overwrite to move that run aside"
        )

    def find_resumption(self, store: CheckpointStore, config: Config, data: Manifest) -> Resumption:
        """Find the newest good checkpoint, checked against config and data; with the lock held.

        Args:
            store: of MODEL_DIR.
            config: to continue with; `check_settings` allowed it.
            data: likewise.

        Raises:
            BadInput: it belongs to another config or data set.
            StorageError: checkpoints exist and none is good.
        """
        checkpoint = store.latest_good()
        interruptions = run_log.unfinished_starts(self.events.records)
        if checkpoint is None:
            return Resumption(None, interruptions)
        meta = checkpoint.meta
        if meta.data_fingerprint != data.fingerprint:
            raise BadInput(
                f"{self.path} was trained on other data (fingerprint"
                f" {meta.data_fingerprint[:12]}, not {data.fingerprint[:12]}): give that"
                " --data_dir, or another --model_dir, or --overwrite to move that run aside"
            )
        # The new settings were compared with the run's, and those must be the checkpoint's.
        own = self.settings or (config, data)
        check_config(*own, meta, self.join(CONFIG), earlier_configs(self.events.records))
        return Resumption(
            checkpoint, max(interruptions, meta.interruptions), next_batch(meta, config)
        )

    def check_is_of(self, owner: str, deps: Dependencies) -> None:
        """Refuse, in a process of a pod that does not write, another folder than the writer's.

        Args:
            owner: of the writer's lock.
            deps: of the job.

        Raises:
            BadInput: it is another folder, where that lock is not seen.
        """
        end = deps.clock() + _VISIBLE_SECONDS
        while (holder := holder_of(self.join(LOCK))) is None or holder.id != owner:
            if deps.clock() > end:
                raise BadInput(
                    f"{self.path} on this host is not the folder that process 0 writes to: give a"
                    " --model_dir on gs://, or on a disk that all hosts share"
                )
            time.sleep(_POLL_SECONDS)

    # Writing.

    @contextlib.contextmanager
    def locked(self, deps: Dependencies) -> Iterator[tuple[Lease, str]]:
        """Make MODEL_DIR and hold its lock; with `overwrite` move the run in it aside first.

        Yields:
            The lock, and an empty scratch folder: on the disk of MODEL_DIR, where that is local, so
            that checkpoints are moved and not copied.

        Raises:
            BadInput: a trainer is at work there, the run cannot be moved aside, or its events
                cannot be read.
        """
        if self._overwrite and self.has_work:
            with self._lease(deps):
                moved = self._move_aside()
            deps.log(f"{self.path}: the run that was there is now {moved}")
        parent = () if storage.is_remote(self.path) else (self.path, ".scratch-")
        with outputs.new_folder(self.path):
            self._owned = self._owned or Owned.create(self.path, _KIND)
            with self._lease(deps) as lease:
                self.events.read()
                self.owned.note(dict.fromkeys(_LOGS))
                with scratch_directory(*parent) as scratch:
                    yield lease, scratch

    @property
    def owned(self) -> Owned:
        """Return the mark of MODEL_DIR, once it is locked."""
        assert self._owned is not None
        return self._owned

    def _lease(self, deps: Dependencies) -> contextlib.AbstractContextManager[Lease]:
        """Hold the lock."""
        busy = f"{self.path}: {{owner}} is training here: stop it first, or use another --model_dir"
        return held(Lease(self.join(LOCK), busy, deps.log, clock=deps.monotonic))

    def _move_aside(self) -> str:
        """Rename MODEL_DIR, with the lock held; returns the new name.

        Raises:
            BadInput: it cannot be renamed.
        """
        if storage.is_remote(self.path):
            moved = storage.free_name(self.path)
            names = [name for name in storage.list_tree(self.path) if name != LOCK]
            storage.run_all(
                [  # copies on the bucket's side
                    partial(storage.rename, self.join(name), storage.join(moved, name))
                    for name in names
                ]
            )
            self.files, self._owned = {}, None
            return moved
        advice = "choose another --model_dir, or move it yourself"
        path = os.path.realpath(self.path)  # of a link the target moves, and is made anew
        if os.path.ismount(path) or os.path.commonpath([path, os.getcwd()]) == path:
            raise BadInput(
                f"{self.path}: it cannot be renamed while it is the working directory or holds it,"
                f" or is a mount point: {advice}"
            )
        moved = storage.free_name(path)
        os.rename(path, moved)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(moved, LOCK))  # ours: the old run is not trained any more
        os.mkdir(path)
        self.files, self._owned = {}, None
        return moved

    def write_settings(self, config: Config, data: Data, tokenizer: str) -> None:
        """Write the resolved config, where it is another than before, and the tokenizer.

        Args:
            config: of the run.
            data: of the run.
            tokenizer: the data set's file.
        """
        before = flatten(*self.settings) if self.settings else {}
        if flatten(config, data) != before:
            self.owned.write(CONFIG, config_to_yaml(config, data).encode())
        if TOKENIZER not in self.files and storage.exists(tokenizer):
            self.owned.write(TOKENIZER, storage.read_bytes(tokenizer))

    def remove_new_files(self) -> None:
        """Undo a new run that failed before step 1."""
        self.owned.remove([name for name in self.owned.files if name not in self.files])
        if MARK not in self.files:
            storage.delete(self.join(MARK))


def next_batch(meta: Meta, config: Config) -> int:
    """Compute the batch of the data's order with which a checkpoint continues."""
    return -(-meta.next_batch * meta.global_batch_size // config.training.global_batch_size)
