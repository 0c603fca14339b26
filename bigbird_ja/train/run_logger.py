"""Logs of a run while it trains: log files, progress line and TensorBoard."""

import contextlib
import importlib.metadata
import os
import platform
import threading
from collections.abc import Callable
from typing import Any

from bigbird_ja import __version__, storage
from bigbird_ja.errors import BadInput, CommandError, OutOfMemory
from bigbird_ja.evaluation import tensorboard
from bigbird_ja.model.flops import count_model_flops
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import Meta
from bigbird_ja.model_dir.folder import ModelDir, Resumption
from bigbird_ja.model_dir.model import CONTINUED
from bigbird_ja.process import workers
from bigbird_ja.process.console import escape_text
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import compute_config_fingerprint, flatten, list_changes
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train.job import Job, PretrainResult
from bigbird_ja.train.progress import TrainProgress
from bigbird_ja.train.saver import Saved
from bigbird_ja.train.tensorboard import EventWriter
from bigbird_ja.train.wandb import WandbLog

# Heartbeats per upload of metrics.jsonl.
_BEATS_PER_SYNC = 4
_PACKAGES = ("tensorflow", "tensorflow-cpu", "jax", "jaxlib", "libtpu", "numpy", "sentencepiece")


class RunLogger:
    """Writer of metrics.jsonl, eval.jsonl, events.jsonl, heartbeat.json and TensorBoard's file.

    In a pod, only the logger of the writing process writes files. The other loggers only store step
    and loss for the results.

    Args:
        job: run to record.
        model_dir: MODEL_DIR, locked by the process that writes.
        resumption: point at which training continues.

    Attributes:
        step: last finished step.
        loss: loss of the last logged step.
    """

    def __init__(self, job: Job, model_dir: ModelDir, resumption: Resumption) -> None:
        self._job, self._deps = job, job.deps
        self._model_dir, self._resumption = model_dir, resumption
        self._writes = job.pod.is_writer
        self.step = resumption.step
        self.loss: float | None = None
        self._beats, self._has_ended = 0, False
        # Saves that are not in events.jsonl yet.
        self._saved: list[Saved] = []
        # Lock for `_write_saved`, which several threads call.
        self._lock = threading.Lock()
        model_dir.open_logs(self.step, job.config.training.num_train_steps)
        if model_dir.metrics is not None:
            self.loss = (model_dir.metrics.last or {}).get("loss")
        data, engine = job.manifest, job.engine
        sequences = job.config.training.global_batch_size
        self.progress = TrainProgress(
            num_train_steps=job.config.training.num_train_steps,
            tokens_per_step=sequences * data.seq_length * data.density,
            flops_per_core_step=count_model_flops(job.config, data, sequences) / engine.replicas,
            peak_flops=engine.peak_flops,
            step=self.step,
            seconds_before=resumption.train_seconds,
            clock=self._deps.monotonic,
        )
        self._board: EventWriter | None = None
        self._wandb: WandbLog | None = None

    def record_start(self, init_from: dict[str, Any] | None) -> None:
        """Record the start of a run, after the engine has accepted it.

        Settings, tokenizer, an event and the first heartbeat are written. TensorBoard's file and
        the run on Weights & Biases are opened.

        Args:
            init_from: record of the other model, if this run starts from its weights.
        """
        self._model_dir.begin()
        if not self._writes:
            return
        job, engine, resumption = self._job, self._job.engine, self._resumption
        model_dir = self._model_dir
        before = model_dir.find_last_start()
        if model_dir.settings is not None and resumption.checkpoint is not None:
            self._record_other_settings(model_dir.settings)
        tokenizer = storage.join(job.data_dir, "tokenizer.model")
        model_dir.write_settings(job.config, job.manifest, tokenizer)
        # If a resume changes one of these values, the results differ by rounding errors.
        start = {"engine": engine.name, "replicas": engine.replicas, "processes": engine.processes}
        if "cpu" in engine.device.lower():  # Rounding depends on the number of cores.
            start["cores"] = workers.count_cores()
        self.record_event(
            "started" if resumption.checkpoint is None else "resumed",
            interruptions=resumption.interruptions,
            config=compute_config_fingerprint(job.config, job.manifest)[:16],
            data=job.manifest.fingerprint[:16],
            engine_why=engine.why,
            # Host names, paths and environment variables are private, so they are not recorded.
            environment={
                "bigbird_ja": __version__,
                "python": platform.python_version(),
                **list_package_versions(),
                "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
                "device": engine.device,
            },
            **start,
            **({"init_from": init_from} if init_from else {}),
        )
        if resumption.checkpoint is not None:
            same = ", ".join(f"{key} {value}" for key, value in start.items())
            self._deps.log(f"bit-identical with the same packages, processor and {same}")
        for key, now in start.items():
            was = before.get(key, now) if before else now
            if was != now:
                self._deps.log(f"{key}: {was} until now, {now} from here on (equal up to rounding)")
        self.update_heartbeat(write=True, state="starting")
        self._board = EventWriter(model_dir, self.step, self._deps.clock)
        if job.wandb:
            import wandb

            name, settings = (
                storage.get_base_name(model_dir.path),
                flatten(job.config, job.manifest),
            )
            run_id = model_dir.owned.place_id
            self._wandb = WandbLog(wandb, run_id, name, settings, self._deps.log)

    def _record_other_settings(self, before: tuple[Config, Data]) -> None:
        """Log and record the settings that differ from the run's config.yaml."""
        config, data = self._job.config, self._job.manifest
        if changed := list_changes(before, (config, data)):
            named = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())
            self._deps.log(f"from step {self.step:,} on with {named}")
            self.record_event(
                CONTINUED,
                settings=changed,
                was=compute_config_fingerprint(*before),
                now=compute_config_fingerprint(config, data),
            )

    def note_first_step(self) -> None:
        """Record that the first step begins."""
        self.progress.begin()
        self.update_heartbeat(state="training")

    def record_event(self, event: str, **fields: Any) -> None:
        """Append an event, with the last finished step, to events.jsonl."""
        if self._writes:
            self._write_saved()
            fields = {"global_step": self.step, **fields}
            self._model_dir.events.append(event, self._deps.clock, **fields)

    def _write_saved(self) -> None:
        """Append an event to events.jsonl for each checkpoint saved since the last call."""
        with self._lock:
            while self._saved:
                saved = self._saved[0]
                fields = {"global_step": saved.step, "seconds": round(saved.seconds, 3)}
                self._model_dir.events.append("saved", _make_fixed_clock(saved.time), **fields)
                self._saved.pop(0)

    def update_heartbeat(self, write: bool = False, **fields: Any) -> None:
        """Change fields of the heartbeat, and write heartbeat.json if `write` is set."""
        self._model_dir.heartbeat.update(**fields)
        if write and self._writes:
            self._model_dir.write_heartbeat()

    def note_step(self, step: int) -> None:
        """Record that steps up to `step` are finished."""
        self.progress.note_finished(step)
        self.step = step
        self.update_heartbeat(global_step=step, step_time=self._get_time())

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Record the metrics of one logged step. Calls must be in the order of the steps."""
        self.loss = metrics["loss"]
        if (log := self._model_dir.metrics) is None:
            return
        rate = self.progress.measure()
        record: dict[str, Any] = {
            "step": step,
            "loss": self.loss,
            "masked_lm_accuracy": metrics["masked_lm_accuracy"],
            "learning_rate": metrics["learning_rate"],
            "tokens_per_second": round(rate, 1),
            "time": self._get_time(),
            **metrics,
            "train_seconds": round(self.progress.train_seconds(), 3),
        }
        if (mfu := self.progress.compute_mfu(rate)) is not None:
            record["mfu"] = round(mfu, 4)
        log.append(record)
        self.update_heartbeat(tokens_per_second=record["tokens_per_second"], loss=self.loss)
        if self._board is not None:
            self._board.write_scalars(step, record)
        if self._wandb is not None:
            self._wandb.write(step, record, "train")
        self.progress.show(record, force=step >= self._job.config.training.num_train_steps)

    def record_evaluation(self, step: int, results: dict[str, Any]) -> None:
        """Record the results of one evaluation."""
        file = tensorboard.make_evaluation_file(step, results, self._deps.clock())
        self._model_dir.owned.overwrite(*file)
        run_log.append_eval(
            self._model_dir.path, {"step": step, "time": self._get_time(), **results}
        )
        if self._wandb is not None:
            self._wandb.write(step, results, "eval")
        self._deps.log(
            f"evaluation at step {step:,}: loss {results['masked_lm_loss']:.4f},"
            f" accuracy {results['masked_lm_accuracy']:.1%}"
        )
        for e in results["examples"]:
            filled = escape_text(f"{e['before']}【{e['guess']}】{e['after']}")
            self._deps.log(f"  {filled} {e['probability']:.1%}")
        self.progress.leave_out()

    def note_save(self, saved: Saved | None) -> None:
        """Store a completed save, if any, until the next `write_heartbeat` records it.

        The training loop calls this method. Recording the save at once would stall the loop if the
        bucket is slow.
        """
        if saved is not None:
            self._saved.append(saved)
            self.update_heartbeat(state="training")

    def write_heartbeat(self) -> None:
        """Check that MODEL_DIR is still locked by this process, and write heartbeat.json.

        The first call after a save also records the save, and uploads the logs. Otherwise every
        fourth call uploads metrics.jsonl.
        """
        if not self._writes:
            return
        self._model_dir.check_lock()
        self.update_heartbeat(write=True)
        self._beats += 1
        if self._saved:
            self._write_saved()
            self.sync()
        elif self._beats % _BEATS_PER_SYNC == 0:
            self.sync_metrics()

    def sync_metrics(self) -> None:
        """Upload metrics.jsonl, if MODEL_DIR is on a bucket."""
        if self._model_dir.metrics is not None:
            self._model_dir.metrics.sync()

    def sync(self) -> None:
        """Upload metrics.jsonl and TensorBoard's file, if MODEL_DIR is on a bucket."""
        self.sync_metrics()
        if self._board is not None:
            self._board.sync()

    def _count_tokens(self) -> int:
        """Estimate the number of training tokens so far, without padding.

        The estimate uses the data set's average number of tokens per sequence.
        """
        tokens_per_step = self.progress.tokens_per_step
        before = self._resumption.checkpoint
        if before is None or before.meta.step == self._resumption.next_batch:
            return round(self.step * tokens_per_step)
        # Some steps before the checkpoint had another batch size, so its own number is used.
        new = (self.step - before.meta.step) * tokens_per_step
        return before.meta.tokens_seen + round(new)

    def make_metadata(self) -> Meta:
        """Return metadata for a checkpoint at the last finished step, still without its files."""
        manifest, config = self._job.manifest, self._job.config
        return Meta(
            step=self.step,
            config_fingerprint=compute_config_fingerprint(config, manifest),
            data_fingerprint=manifest.fingerprint,
            train_seconds=round(self.progress.train_seconds(), 3),
            tokens_seen=self._count_tokens(),
            interruptions=self._resumption.interruptions,
            time=self._get_time(),
            next_batch=self._resumption.next_batch + self.step - self._resumption.step,
            global_batch_size=config.training.global_batch_size,
            tokenizer_sha256=manifest.tokenizer_sha256,
        )

    def make_results(self, reason: str) -> PretrainResult:
        """Return the run's totals so far, with the exit reason."""
        return PretrainResult(
            global_step=self.step,
            loss=self.loss,
            reason=reason,
            train_seconds=round(self.progress.train_seconds(), 3),
            tokens_seen=self._count_tokens(),
            interruptions=self._resumption.interruptions,
            model_dir=self._model_dir.path,
        )

    def close(self) -> None:
        """Close the progress line and TensorBoard's file, and log a failure instead of raising."""
        self.progress.close()
        if self._wandb is not None:
            self._wandb.close()
        if self._board is not None:
            try:
                self._board.sync()
            except Exception as failure:
                self._deps.log(f"TensorBoard's file could not be completed: {failure}")

    def record_end(self, reason: str, error: BaseException | None) -> None:
        """Record the exit reason.

        If the recording fails, the failure is logged instead of raised. Later calls do nothing.
        Nothing is recorded after a refused start. Nothing is recorded after the lock was lost, as
        MODEL_DIR belongs to another process.
        """
        if self._has_ended or isinstance(error, LeaseLost):
            return
        self._has_ended = True
        # The text of a library's exception may contain private data, so only its type is recorded.
        words = str(error) if isinstance(error, CommandError) else type(error).__name__
        fields = {"message": " ".join(words.split())} if error else {}
        name = reason if reason in ("finished", "interrupted") else "failed"
        writes = [
            self._model_dir.begin,
            self.sync_metrics,
            lambda: self.record_event(name, reason=reason, **fields),
            lambda: self.update_heartbeat(write=True, state="stopped", reason=reason),
        ]
        is_refusal = isinstance(error, (BadInput, OutOfMemory))
        if is_refusal and not self._model_dir.has_begun:
            writes = [self._model_dir.undo]
        for write in writes:
            try:
                write()
            except Exception as failure:
                self._deps.log(f"the exit reason could not be recorded: {failure}")

    def _get_time(self) -> float:
        return round(self._deps.clock(), 3)


def _make_fixed_clock(seconds: float) -> Callable[[], float]:
    """Return a clock that always shows the same time."""
    return lambda: seconds


def list_package_versions() -> dict[str, str]:
    """Return the versions of installed packages that a run uses."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
