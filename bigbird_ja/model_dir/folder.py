"""MODEL_DIR of a run, checked before any write, and locked while the run writes to it.

A run may continue with a changed number of steps. It may continue with other changed settings if
the user gives them explicitly. The optimizer's state is kept. If the batch size changes, the order
of the data is divided into batches of the new size. The next batch is the first batch that contains
no seen record. So no record is seen twice, and less than one batch is skipped.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import STATE, Checkpoint, CheckpointStore, Meta
from bigbird_ja.model_dir.log_schema import Evaluation, EventRecord
from bigbird_ja.model_dir.model import CONFIG, TOKENIZER, check_config, list_earlier_configs
from bigbird_ja.process import console
from bigbird_ja.settings.config_file import config_to_yaml, read_config
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten, get_accepted_changes, list_changes
from bigbird_ja.storage import outputs
from bigbird_ja.storage.disk import create_scratch_directory
from bigbird_ja.storage.lease import LOCK_NAME, Lease, keep_lease, read_holder
from bigbird_ja.storage.ownership import MANIFEST_NAME, Owned

_CHECKPOINT = re.compile(rf"(damaged-(\d+-)?)?model\.ckpt-\d+\..*|{STATE}")
# Maximum delay until a file on a shared disk is visible to other hosts.
_VISIBLE_SECONDS = 15.0
_POLL_SECONDS = 0.5
# Files that change while a run trains.
_LOGS = (STATE, run_log.EVENTS, run_log.HEARTBEAT, run_log.METRICS, run_log.EVAL)
_FOLDERS = ("eval", "plugins", "compiled")
_KIND = "run"
_ADVICE = (
    f"give an empty folder as `model_dir`. A copied run needs its {MANIFEST_NAME} (`cp -r RUN/."
    " DIR`). To start from a TensorFlow checkpoint or a Hugging Face folder, use `init_from`"
)


@dataclass(frozen=True)
class Resumption:
    """Point at which training continues."""

    checkpoint: Checkpoint | None
    interruptions: int  # Number of earlier starts that did not finish the run.
    next_batch: int = 0  # Position in the data's order, in batches of the config's size.

    @property
    def step(self) -> int:
        """Global step of the checkpoint, or 0 without a checkpoint."""
        return self.checkpoint.meta.step if self.checkpoint else 0

    @property
    def train_seconds(self) -> float:
        """Seconds of training before the checkpoint."""
        return self.checkpoint.meta.train_seconds if self.checkpoint else 0.0


class ModelDir:
    """MODEL_DIR, with its files, ownership manifest, lock, scratch folder, checkpoints and logs.

    The constructor lists the folder and reads its manifest. If another process changes the manifest
    before the folder is locked, the folder is listed again. An unchanged manifest shows that no
    checkpoint was added, since every file of a checkpoint is added to the manifest first.

    Args:
        path: MODEL_DIR, on disk or gs://.
        overwrite: whether to rename an existing run aside instead of continuing it.
        log: callback for messages to the user.
        clock: clock, UNIX seconds.

    Attributes:
        files: size and version of the folder's files, by name.
        settings: config and data of the run in the folder, or None without a run.
        events: events of the run. They are read after the folder is locked, since a supervisor may
            add events before the trainer acquires the lock.
        lease: lock of the folder. It is None before `lock`, and in a process that does not write.
        scratch: empty local folder, after `lock` or `follow_writer`.
        checkpoints: store of checkpoints, after `lock` or `follow_writer`.
        evaluations: evaluations in eval.jsonl, after `open_logs`. Evaluations after the checkpoint
            are included.
        heartbeat: writer of heartbeat.json, after `open_logs`.

    Raises:
        BadInput: The path cannot be a folder, the folder contains files that `pretrain` did not
            write, or the settings of its run cannot be read.
    """

    def __init__(
        self,
        path: str,
        overwrite: bool = False,
        *,
        log: Callable[[str], None] = console.log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log, self._clock = log, clock
        outputs.check_folder_place(path, "`model_dir`")
        self.path, self.files, self._overwrite = path, storage.list_stats(path), overwrite
        # The ownership manifest, or None if there is none yet.
        self.manifest = outputs.check_folder(path, "`model_dir`", _KIND, _ADVICE)
        if self.manifest is not None and self.manifest.moving_to:
            self._overwrite = overwrite = True  # Complete a renaming that a kill has interrupted.
        self.settings: tuple[Config, Data] | None = None
        if not overwrite and CONFIG in self.files and self.has_work:
            self.settings = read_config(self.join(CONFIG))
        self.events = run_log.EventLog(path)
        self.lease: Lease | None = None
        self.scratch = ""
        self.evaluations: list[Evaluation] = []
        self.metrics: run_log.MetricsLog | None = None
        self._has_begun = False
        # Old content of heartbeat.json, which is restored if the start is refused.
        self._heartbeat_before: bytes | None = None

    def join(self, name: str) -> str:
        """Return the path of a file in MODEL_DIR."""
        return storage.join(self.path, name)

    @property
    def has_begun(self) -> bool:
        """Whether `begin` was called.

        If a start is refused before that call, `undo` leaves the run's files as they were.
        """
        return self._has_begun

    @property
    def has_work(self) -> bool:
        """Whether the folder contains a checkpoint (damaged or not), or a logged step."""
        metrics = self.files.get(run_log.METRICS)
        return self._has_checkpoints() or bool(metrics and metrics.size)

    @property
    def is_continued(self) -> bool:
        """Whether training continues from a checkpoint of the run in the folder."""
        return self._has_checkpoints() and not self._overwrite

    def _has_checkpoints(self) -> bool:
        """Return whether a file shows that a checkpoint exists or existed, damaged or not."""
        return any(_CHECKPOINT.fullmatch(name) for name in self.files)

    def find_last_start(self) -> EventRecord | None:
        """Return the event of the last start of a run, or None."""
        starts = [e for e in self.events.records if e["event"] in ("started", "resumed")]
        return starts[-1] if starts else None

    def is_recorded_as_finished(self) -> bool:
        """Return whether the event `finished` followed the last start of a run."""
        known = ("started", "resumed", "finished", "failed", "interrupted")
        return [e["event"] for e in self.events.records if e["event"] in known][-1:] == ["finished"]

    def check_settings(self, config: Config, data: Data, stated: Collection[str] = ()) -> None:
        """Compare settings with those of the run in the folder.

        Args:
            config: config to continue with.
            data: data to continue with.
            stated: keys that the caller set explicitly. These settings may differ if a resumed run
                accepts changes of them (`get_accepted_changes`).

        Raises:
            BadInput: Any other setting differs. The message contains its key.
        """
        different = list_changes(self.settings, (config, data)) if self.settings else {}
        is_change = {key: get_accepted_changes(key) == "logged" for key in different}
        different = {k: v for k, v in different.items() if not (is_change[k] and k in stated)}
        if not different:
            return
        named = "; ".join(f"{key}: {old} -> {new}" for key, (old, new) in different.items())
        advice = f"to start another run from its weights, use `init_from` {self.path} with another"
        advice += " `model_dir`"
        if all(is_change[key] for key in different):
            changed = " ".join(f"`overrides` {key}={new}" for key, (_, new) in different.items())
            advice = f"to change them for the rest of the run, use {changed}"
        raise BadInput(
            f"{self.path} contains a run of other settings ({named}): use the same settings;"
            f" {advice}; or use `overwrite` to move that run aside"
        )

    def find_resumption(self, config: Config, data: Data, fingerprint: str) -> Resumption:
        """Find the newest undamaged checkpoint, and the batch at which training continues.

        The caller must own the lock. The checkpoint is compared with the config and the data set.

        Args:
            config: config to continue with, allowed by `check_settings`.
            data: facts of the data set to continue with.
            fingerprint: fingerprint of that data set.

        Raises:
            BadInput: The checkpoint belongs to another config or data set.
            StorageError: All checkpoints are damaged.
        """
        checkpoint = self.checkpoints.find_latest_good(self.files)
        interruptions = run_log.count_unfinished_starts(self.events.records)
        if checkpoint is None:
            return Resumption(None, interruptions)
        meta = checkpoint.meta
        if meta.data_fingerprint != fingerprint:
            raise BadInput(
                f"{self.path} was trained on other data (fingerprint"
                f" {meta.data_fingerprint[:12]}, not {fingerprint[:12]}): give that `data_dir`, or"
                " another `model_dir`, or `overwrite` to move that run aside"
            )
        # `check_settings` has compared the new settings with the run's settings. So the checkpoint
        # is compared with the run's settings.
        own = self.settings or (config, data)
        check_config(*own, meta, self.join(CONFIG), list_earlier_configs(self.events.records))
        return Resumption(
            checkpoint, max(interruptions, meta.interruptions), compute_next_batch(meta, config)
        )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Context manager: create MODEL_DIR and lock it.

        With `overwrite`, an existing run is first renamed aside. If the block ends without a call
        of `begin`, these changes are undone. The block can use a local scratch folder. If MODEL_DIR
        is on a disk, the scratch folder is inside it, so that checkpoints are moved and not copied.

        Raises:
            BadInput: Another trainer owns the lock, the run cannot be renamed aside, or its events
                cannot be read.
        """
        parent = None if storage.is_remote(self.path) else self.path
        with self._move_aside_if_overwritten(), outputs.create_folder(self.path):
            is_new, mark = self.manifest is None, self.join(MANIFEST_NAME)
            before = storage.read_bytes(mark) if is_new and MANIFEST_NAME in self.files else b""
            self.manifest = self.manifest or Owned.create(self.path, _KIND)
            with self._acquire_lease() as self.lease:
                if not self.manifest.is_current():  # Another process has changed the folder.
                    self.files = storage.list_stats(self.path)
                self.lease.expect({self.join(name): s.token for name, s in self.files.items()})
                self._check_entries()
                self.events.read()
                self.manifest.refuse_foreign(_LOGS)
                try:
                    prefix = f"{storage.TEMPORARY_PREFIX}{self.manifest.place_id}."
                    with create_scratch_directory(parent, prefix) as self.scratch:
                        self.checkpoints = CheckpointStore(
                            self.path, self.scratch, self._report, owned=self.manifest
                        )
                        yield
                finally:
                    self.undo()
                    if is_new and not self._has_begun and self.manifest.is_current():
                        storage.write_bytes(mark, before) if before else storage.delete(mark)

    def _check_entries(self) -> None:
        """Check that no path of the run is occupied by an entry of the wrong type.

        The run needs a plain file at some paths, and a folder at others. Missing entries are
        accepted. Without this check, the run would change some files before it fails at an entry of
        the wrong type, for example a FIFO.

        Raises:
            BadInput: An entry has the wrong type. The message contains its path.
        """
        if storage.is_remote(self.path):
            return
        for name in (*_LOGS, CONFIG, TOKENIZER, *_FOLDERS):
            path = self.join(name)
            is_right = os.path.isdir(path) if name in _FOLDERS else _is_plain_file(path)
            if os.path.lexists(path) and not is_right:
                kind = "folder" if name in _FOLDERS else "plain file that can be written to"
                raise BadInput(
                    f"{path} is not a {kind}, which a run needs there: move it away, then rerun the"
                    " same command"
                )

    def open_logs(self, step: int, num_train_steps: int) -> None:
        """Read the logs of a run that continues from `step`, and create its heartbeat writer.

        No file is changed. A process that does not own the lock only creates the writer.

        Raises:
            BadInput: A log contains an invalid line.
        """
        self.heartbeat = run_log.Heartbeat(
            self.path,
            storage.get_base_name(self.path),
            self._clock,
            global_step=step,
            num_train_steps=num_train_steps,
        )
        self._step = step
        if self.lease is not None:
            self.evaluations = run_log.read_evaluations(self.path)
            self.metrics = run_log.MetricsLog(self.join(run_log.METRICS), step)

    def begin(self) -> None:
        """Record that the run begins, and repair its files after a kill.

        Damaged checkpoints are renamed aside. Metrics and evaluations of steps after the resumed
        checkpoint are removed from the logs. Only the process that has locked the folder changes
        files. Later calls do nothing.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if self.lease is None:
            return
        self.owned.note(dict.fromkeys(_LOGS))
        self.checkpoints.repair()
        if self.metrics is not None:
            self.metrics.drop_later()
        if any(line["step"] > self._step for line in self.evaluations):
            run_log.drop_evaluations(self.path, self._step)

    def write_heartbeat(self) -> None:
        """Write heartbeat.json.

        Before `begin` is called, for example while a step compiles, the file is only written if it
        already exists. If the start is refused, `undo` restores the old file.
        """
        if not self._has_begun:
            if self._heartbeat_before is None:
                self._heartbeat_before = run_log.read_heartbeat_bytes(self.path)
            if not self._heartbeat_before:
                return
        self.heartbeat.write()

    def undo(self) -> None:
        """Restore the old heartbeat.json, if this start has changed it and was then refused.

        After `begin`, this method does nothing.
        """
        if self._heartbeat_before and not self._has_begun:
            storage.write_bytes(self.join(run_log.HEARTBEAT), self._heartbeat_before)
            self._heartbeat_before = None

    @contextlib.contextmanager
    def follow_writer(self, owner: str) -> Iterator[None]:
        """Context manager: open the folder that another process of the pod has locked.

        Args:
            owner: id in the lock of that process.

        Raises:
            BadInput: MODEL_DIR on this host does not contain that lock, so the other process has
                locked a different folder.
        """
        end = self._clock() + _VISIBLE_SECONDS
        while (holder := read_holder(self.join(LOCK_NAME))) is None or holder.id != owner:
            if self._clock() > end:
                raise BadInput(
                    f"{self.path} on this host is not the folder that process 0 writes to: give a"
                    " `model_dir` on gs://, or on a disk that all hosts share"
                )
            time.sleep(_POLL_SECONDS)
        with create_scratch_directory() as self.scratch:
            self.checkpoints = CheckpointStore(self.path, self.scratch)
            yield

    def check_lock(self) -> None:
        """Check that this process still owns the lock.

        Raises:
            LeaseLost: MODEL_DIR belongs to another process.
        """
        if self.lease is not None:
            self.lease.check()

    @property
    def owned(self) -> Owned:
        """Ownership manifest. Read this property only after MODEL_DIR is locked."""
        assert self.manifest is not None
        return self.manifest

    def _acquire_lease(self) -> contextlib.AbstractContextManager[Lease]:
        """Return a context manager that acquires the lock and releases it at the end."""
        busy = f"{self.path}: {{owner}} is training here: stop it first, or use another `model_dir`"
        return keep_lease(Lease(self.join(LOCK_NAME), busy, self._log))

    def _report(self, event: str, step: int, text: str) -> None:
        """Report in the log and in events.jsonl that checkpoint files were renamed or removed."""
        self._log(text)
        self.events.append(event, self._clock, global_step=step, message=text)

    @contextlib.contextmanager
    def _move_aside_if_overwritten(self) -> Iterator[None]:
        """Context manager: with `overwrite`, rename the old run aside.

        If the new run does not begin, the old run is renamed back.
        """
        is_half_moved = self.manifest is not None and bool(self.manifest.moving_to)
        if not (is_half_moved or (self._overwrite and self.has_work)):
            yield
            return
        with self._acquire_lease():
            moved = self._move_aside()
        self._log(f"{self.path}: the run that was there is now {moved}")
        try:
            yield
        finally:
            if not self._has_begun:
                self._move_back(moved)
                self._log(f"{self.path}: the run that was there is back")

    def _move_back(self, moved: str) -> None:
        if storage.is_remote(self.path):
            with self._acquire_lease():
                Owned.open(moved).move_back(self.path)
        else:
            path = os.path.realpath(self.path)
            os.rmdir(path)
            os.rename(moved, path)

    def _move_aside(self) -> str:
        """Rename MODEL_DIR and return the new name. The caller must own the lock.

        Raises:
            BadInput: MODEL_DIR cannot be renamed.
        """
        if storage.is_remote(self.path):
            # A bucket cannot rename, so the files are copied and deleted. The lock stays. The
            # manifest is deleted last, so that a rerun can continue after a kill.
            names = set(storage.list_tree(self.path)) - {LOCK_NAME, MANIFEST_NAME}
            moved = self.owned.set_aside(sorted(names), is_whole=True)
            storage.delete(self.join(MANIFEST_NAME))
            self.files, self.manifest = {}, None
            return moved
        advice = "choose another `model_dir`, or move it yourself"
        path = os.path.realpath(self.path)  # The target of a link is renamed.
        if os.path.ismount(path) or os.path.commonpath([path, os.getcwd()]) == path:
            raise BadInput(
                f"{self.path} cannot be renamed, as it is a mount point, or the working directory"
                f" is in it: {advice}"
            )
        moved = storage.find_free_name(path)
        os.rename(path, moved)
        with contextlib.suppress(FileNotFoundError):
            # The lock file has moved, too. This process owns the lock, so the file can be deleted.
            os.unlink(os.path.join(moved, LOCK_NAME))
        os.mkdir(path)
        self.files, self.manifest = {}, None
        return moved

    def write_settings(self, config: Config, data: Data, tokenizer: str) -> None:
        """Write the resolved config, if it has changed, and the tokenizer, if it is missing.

        Args:
            config: config of the run.
            data: data of the run.
            tokenizer: path of the data set's tokenizer.
        """
        before = flatten(*self.settings) if self.settings else {}
        if flatten(config, data) != before:
            self.owned.write(CONFIG, config_to_yaml(config, data).encode())
        if TOKENIZER not in self.files and storage.exists(tokenizer):
            self.owned.write(TOKENIZER, storage.read_bytes(tokenizer))


def _is_plain_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and os.access(path, os.R_OK | os.W_OK)


def compute_next_batch(meta: Meta, config: Config) -> int:
    """Return the number of the first batch after a checkpoint, for the config's batch size."""
    return -(-meta.next_batch * meta.global_batch_size // config.training.global_batch_size)
