"""Everything that a run says about itself while it trains: one place for all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.run import log as run_log
from bigbird_ja.settings.values import first_phase
from bigbird_ja.storage.lease import LeaseLost
from bigbird_ja.train import lengths
from bigbird_ja.train.progress import Pace, TrainProgress, pace_of
from bigbird_ja.train.request import Request
from bigbird_ja.train.run_directory import Resumption
from bigbird_ja.train.wandb_log import WandbLog, load_library

if TYPE_CHECKING:
    from bigbird_ja.train.tensorboard import EventWriter


class Recorder:
    """Progress line, metrics.jsonl, eval.jsonl, events.jsonl, heartbeat.json, TensorBoard.

    Args:
        request: of the run.
        found: where training continues.
        scratch: local directory, for TensorBoard's file while MODEL_DIR is on a bucket.
    """

    def __init__(self, request: Request, found: Resumption, scratch: str) -> None:
        self._request, self._around, self._scratch = request, request.surroundings, scratch
        self._found, self._dir = found, request.model_dir
        self.step = found.step
        self._metrics = self._open_metrics()
        self.loss: float | None = (self._metrics.last or {}).get("loss")
        self._pace = self._pace_at(found.step)
        self.progress = TrainProgress(
            self._pace, found.step, found.train_seconds, clock=self._around.monotonic
        )
        self.heartbeat = self._make_heartbeat()
        self._board: EventWriter | None = None
        self._wandb: WandbLog | None = None
        self._wandb_library = load_library() if request.wandb else None

    def _pace_at(self, step: int) -> Pace:
        """What a step is worth that follows `step`; short sequences need fewer FLOPs."""
        config, engine = self._request.config, self._request.engine
        if lengths.is_in_first_phase(config, step):
            config = first_phase(config) or config
        return pace_of(config, self._request.manifest.density, engine.replicas, engine.peak_flops)

    def _open_metrics(self) -> run_log.MetricsLog:
        return run_log.MetricsLog(storage.join(self._dir, run_log.METRICS), self._found.step)

    def _make_heartbeat(self) -> run_log.Heartbeat:
        return run_log.Heartbeat(
            self._dir,
            storage.base_name(self._dir),
            self._around.clock,
            global_step=self._found.step,
            num_train_steps=self._request.config.training.num_train_steps,
        )

    def event(self, event: str, **fields: Any) -> None:
        """Adds a line to events.jsonl."""
        run_log.append_event(self._dir, event, self._around.clock, **fields)

    def lengthened(self) -> None:
        """Sequences are whole from here on."""
        training, now = self._request.config.training, self._request.config.make_data.seq_length
        step, was = training.first_seq_length_steps or 0, training.first_seq_length
        self._around.log(f"from step {step:,} on sequences have {now:,} tokens, no longer {was:,}")
        self.event(lengths.CHANGED, global_step=step, was=was, now=now)
        self._pace = self.progress.pace = self._pace_at(step)
        self.progress.restart_clock(self.step)

    def tokens_seen(self) -> int:
        """Tokens trained on so far, padding left out (by the data set's density)."""
        before = self._found.checkpoint
        if before is None or before.meta.step == self._found.next_batch:
            return round(self.step * self._pace.tokens_per_step)
        new = (self.step - before.meta.step) * self._pace.tokens_per_step
        return before.meta.tokens_seen + round(new)  # steps before were of another size

    def next_batch(self) -> int:
        """The batch of the data's order that comes next, in batches of this config."""
        return self._found.next_batch + self.step - self._found.step

    def totals(self) -> dict[str, Any]:
        """The run's totals so far, as in `--json`."""
        return {
            "global_step": self.step,
            "loss": self.loss,
            "train_seconds": round(self.progress.train_seconds(), 3),
            "tokens_seen": self.tokens_seen(),
            "interruptions": self._found.interruptions,
            "model_dir": self._dir,
        }

    def open_board(self) -> None:
        """Opens TensorBoard's file; this is what needs TensorFlow."""
        from bigbird_ja.train.tensorboard import EventWriter

        self._board = EventWriter(self._dir, self._scratch, self.step, self._around.clock)
        if self._wandb_library is not None:
            name, config = storage.base_name(self._dir), self._request.config
            self._wandb = WandbLog(self._wandb_library, name, config, self._around.log)

    def began(self) -> None:
        """The first step comes next."""
        self.progress.begin()
        self.heartbeat.update(state="training")

    def stepped(self, step: int) -> None:
        """Steps up to `step` are finished."""
        if self.step == self._found.step:  # the first loop traces and compiles: no measure
            self.progress.restart_clock(step)
        self.step = step
        self.heartbeat.update(global_step=step, step_time=self._now())

    def logged(self, metrics: dict[str, float]) -> None:
        """The metrics of one logged step, in order."""
        step = int(metrics["step"])
        rate = self.progress.measure(step)
        record: dict[str, Any] = {
            "step": step,
            "loss": metrics["loss"],
            "masked_lm_accuracy": metrics["masked_lm_accuracy"],
            "learning_rate": metrics["learning_rate"],
            "tokens_per_second": round(rate, 1),
            "time": self._now(),
            **metrics,
            "train_seconds": round(self.progress.train_seconds(), 3),
        }
        if (mfu := self.progress.mfu(rate)) is not None:
            record["mfu"] = round(mfu, 4)
        self.loss = record["loss"]
        self._metrics.append(record)
        self.heartbeat.update(tokens_per_second=record["tokens_per_second"], loss=self.loss)
        if self._board is not None:
            self._board.scalars(step, record)
        if self._wandb is not None:
            self._wandb.write(step, record, "train")
        self.progress.show(record, force=step >= self._pace.num_train_steps)

    def evaluated(self, step: int, found: dict[str, Any]) -> None:
        """The results of one evaluation."""
        run_log.append_eval(self._dir, {"step": step, "time": self._now(), **found})
        if self._wandb is not None:
            self._wandb.write(step, found, "eval")
        self._around.log(
            f"evaluation at step {step:,}: loss {found['masked_lm_loss']:.4f},"
            f" accuracy {found['masked_lm_accuracy']:.1%}"
        )
        self.progress.restart_clock(step)

    def sync_metrics(self) -> None:
        """Brings metrics.jsonl on a bucket up to date."""
        self._metrics.sync()

    def sync(self) -> None:
        """Brings metrics and TensorBoard's file up to date: with each save, and at the end."""
        self._metrics.sync()
        if self._board is not None:
            self._board.sync()

    def close(self) -> None:
        """Ends the progress line and TensorBoard's file. Never raises: it would hide the cause."""
        self.progress.close()
        if self._wandb is not None:
            self._wandb.close()
        if self._board is not None:
            try:
                self._board.close()
            except Exception as failure:
                self._around.log(f"TensorBoard's file could not be completed: {failure}")

    def ended(self, reason: str, error: BaseException | None) -> None:
        """Writes down why the run ended. Never raises: the end itself is what must be told. Who
        lost the lock writes nothing: MODEL_DIR is another's."""
        if isinstance(error, LeaseLost):
            return
        fields = {"message": " ".join(str(error).split())} if error else {}
        name = reason if reason in ("finished", "interrupted") else "failed"
        for what in (
            self._metrics.sync,
            lambda: self.event(name, reason=reason, global_step=self.step, **fields),
            lambda: self.heartbeat.write(state="stopped", reason=reason),
        ):
            try:
                what()
            except Exception as failure:
                self._around.log(f"the end could not be recorded: {failure}")

    def _now(self) -> float:
        return round(self._around.clock(), 3)


class Bystander(Recorder):
    """The recorder of a process of a pod that does not write: it knows step and loss, for its
    results, and neither writes nor prints."""

    def _open_metrics(self) -> run_log.MetricsLog:
        return _NoMetrics()

    def _make_heartbeat(self) -> run_log.Heartbeat:
        return _NoHeartbeat(self._dir, "")

    def event(self, event: str, **fields: Any) -> None:
        """Nothing: only the writer's recorder does this."""

    def open_board(self) -> None:
        """Nothing: only the writer's recorder does this."""

    def logged(self, metrics: dict[str, float]) -> None:
        """Keeps the loss."""
        self.loss = metrics["loss"]


class _NoMetrics(run_log.MetricsLog):
    def __init__(self) -> None:
        self.last = None

    def sync(self) -> None: ...


class _NoHeartbeat(run_log.Heartbeat):
    def write(self, **fields: Any) -> None: ...
