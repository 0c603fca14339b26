"""Evaluating the checkpoints of a run, or an exported model, on one data set."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.evaluation import masked_lm
from bigbird_ja.evaluation.trained_model import TrainedModel, is_export, load_model
from bigbird_ja.process.console import Progress, log, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.records import HeartbeatRecord
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.text.corpus import Corpus

POLL_SECONDS = 20.0


@dataclass(frozen=True)
class ProbeRequest:
    """What `--probe` runs on."""

    corpus: Corpus | None  # to read instead of the held-out records
    names: str  # facts | rare
    max_cases: int
    plot: str | None  # PNG file


class Evaluator:
    """Evaluates what one `evaluate` command names; an exported folder is never written to."""

    def __init__(
        self,
        model_dir: str,
        data_dir: str,
        manifest: Manifest,
        max_batches: int | None = None,
        probe: ProbeRequest | None = None,
    ) -> None:
        self.model_dir, self._data_dir, self._manifest = model_dir, data_dir, manifest
        self._max_batches, self._probe = max_batches, probe
        self._is_export = is_export(model_dir)
        # Nothing is written to a folder that `pretrain` did not mark.
        self._is_marked = not self._is_export and Owned.load(model_dir) is not None

    def choose(self, wanted: str) -> list[int | None]:
        """The steps that `--step` means; None for an export's only one.

        Raises:
            BadInput: no checkpoint, or not that one.
        """
        if self._is_export:
            if wanted != "latest":
                raise BadInput(f"--step: {self.model_dir} is an export: give a MODEL_DIR")
            return [None]
        steps = self._steps()
        if not steps:
            raise BadInput(f"{self.model_dir}: no checkpoint here: train first")
        chosen = {"all": steps, "latest": steps[-1:], **{str(step): [step] for step in steps}}
        if wanted not in chosen:
            raise BadInput(
                f"--step {wanted}: no checkpoint of step {wanted} in {self.model_dir}: give one of"
                f" {', '.join(map(str, steps))}, 'latest' or 'all'"
            )
        return [*chosen[wanted]]

    def watch(self, stale_minutes: float) -> list[dict[str, Any]]:
        """Evaluates each checkpoint as it appears; the results.

        Raises:
            BadInput: none appeared, or the folder is an export.
        """
        if self._is_export:
            raise BadInput(f"--watch: {self.model_dir} is an export: give a MODEL_DIR")
        done = []
        read_heartbeat = functools.partial(run_log.read_heartbeat, self.model_dir)
        for step in follow(self._steps, read_heartbeat, stale_minutes=stale_minutes):
            try:
                done.append(self.evaluate(step))
            except (BadInput, FileNotFoundError):
                if step in self._steps():
                    raise
                log(f"checkpoint {step} was removed before it could be evaluated")
        if not done:
            raise BadInput(f"{self.model_dir}: no checkpoint appeared: is training running?")
        return done

    def evaluate(self, step: int | None) -> dict[str, Any]:
        """Evaluates one checkpoint, or repeats what is recorded of it; prints it."""
        result, model = self._recorded(step), None
        if result is None:
            model = self._load(step)
            result = self._measure(model)
        else:
            log(f"checkpoint {step} was evaluated on this data before: see eval.jsonl")
        print(as_text(result))
        if self._probe is not None:
            result = {**result, "probe": self._run_probe(model or self._load(step), self._probe)}
        return dict(result)

    def _steps(self) -> list[int]:
        return CheckpointStore(self.model_dir).steps()

    def _recorded(self, step: int | None) -> Mapping[str, Any] | None:
        """The newest line of `eval.jsonl` about this step on this data."""
        lines = [] if self._is_export else run_log.read_evaluations(self.model_dir)
        wanted = (step, self._manifest.fingerprint, self._max_batches)
        for line in reversed(lines):
            if (line["step"], line.get("data_fingerprint"), line.get("max_batches")) == wanted:
                return line
        return None

    def _load(self, step: int | None) -> TrainedModel:
        """The model.

        Raises:
            BadInput: it was made for other data than this.
        """
        model, manifest = load_model(self.model_dir, step), self._manifest
        settings = model.config.model
        if (settings.vocab_size or 0) < manifest.vocab_size:
            raise BadInput(
                f"{self._data_dir} has a vocabulary of {manifest.vocab_size:,}, the model in"
                f" {self.model_dir} one of {settings.vocab_size:,}: give the data it was trained on"
            )
        if (settings.max_position_embeddings or 0) < manifest.seq_length:
            raise BadInput(
                f"{self._data_dir} has sequences of {manifest.seq_length:,} tokens, the model in"
                f" {self.model_dir} takes {settings.max_position_embeddings:,}"
            )
        trained, made = model.tokenizer.sha256, manifest.tokenizer_sha256
        if made and trained != made:
            raise BadInput(
                f"{self._data_dir} was made with another tokenizer (SHA-256 {made[:12]}) than the"
                f" model in {self.model_dir} ({trained[:12]}): give data made with that one"
            )
        if model.meta and model.meta.data_fingerprint != manifest.fingerprint:
            log(
                f"note: {self._data_dir} is not the data set that {self.model_dir} was trained on:"
                " its held-out records may be among the training records of that one"
            )
        return model

    def _measure(self, model: TrainedModel) -> dict[str, Any]:
        from bigbird_ja.evaluation.forward import Forward

        total = -(-self._manifest.eval.sequences // masked_lm.batch_size(self._manifest.seq_length))
        with Progress(min(total, self._max_batches or total), "batches") as progress:
            measured = masked_lm.evaluate_model(
                Forward(model.config, model.params),
                self._data_dir,
                self._manifest,
                max_batches=self._max_batches,
                tick=lambda: progress.update(1),
            )
        assert measured is not None  # this process has all parts
        result = self._record(model, measured)
        if self._is_marked:
            masked_lm.write_tensorboard(self.model_dir, model.step, result, result["time"])
        return result

    def _record(self, model: TrainedModel, measured: dict[str, Any]) -> dict[str, Any]:
        """A line of `eval.jsonl`, which a run of ours gets."""
        result = {"step": model.step, "time": round(time.time(), 3), **measured}
        if self._is_marked:
            run_log.append_eval(self.model_dir, result)
        return result

    def _run_probe(self, model: TrainedModel, request: ProbeRequest) -> dict[str, Any]:
        from bigbird_ja.data import pipeline
        from bigbird_ja.data.tfrecords import document_ids
        from bigbird_ja.evaluation import probe
        from bigbird_ja.evaluation.forward import Forward

        log("probe: reading text")
        manifest, tokenizer = self._manifest, model.tokenizer
        if request.corpus:
            texts = request.corpus.texts()
            records = probe.documents_as_ids(texts, tokenizer, manifest.seq_length)
        else:
            batches = pipeline.eval_batches(manifest, self._data_dir, batch_size=8)
            records = probe.records_as_ids(batches, manifest.pad_id)
        measured = probe.run(
            Forward(model.config, model.params, functools.partial(document_ids, manifest)),
            tokenizer,
            list(records),
            probe.generated_names if request.names == "facts" else probe.repeated_names,
            max_cases=request.max_cases,
            batch_size=masked_lm.batch_size(manifest.seq_length),
        )
        if not measured["cases"]:
            raise BadInput(
                "--probe: no repeated name in this text: try --probe_names rare, more text by"
                " --probe_input, or a larger --eval_fraction when making the data"
            )
        self._record(model, {"probe": measured})
        print(probe.as_text(measured))
        if request.plot:
            probe.draw(measured, request.plot, f"Names filled in again, step {model.step:,}")
            print(f"curve: {request.plot}")
        return measured


def as_text(result: Mapping[str, Any]) -> str:
    """The tables that `evaluate` prints."""
    rows = [
        ("masked-LM loss (nats)", result["masked_lm_loss"]),
        ("masked-LM accuracy (%)", masked_lm.percent(result["masked_lm_accuracy"])),
        ("perplexity", result.get("perplexity")),
        ("bits per character", result.get("bits_per_character")),
    ]
    if "next_sentence_accuracy" in result:
        percent = masked_lm.percent(result["next_sentence_accuracy"])
        rows.append(("next-sentence accuracy (%)", percent))
    parts = [
        f"step {result['step']:,}: {result.get('predictions', 0):,} predictions in"
        f" {result.get('sequences', 0):,} held-out sequences",
        table(rows, ["measure", "value"]),
    ]
    for key, title in (
        ("by_position", "position in the sequence"),
        ("by_distance", "tokens to the nearest visible same piece"),
        ("by_sub_corpus", "corpus"),
    ):
        cells = [
            (masked_lm.row_name(row), row["loss"], masked_lm.percent(row["accuracy"]), row["count"])
            for row in result.get(key, [])
        ]
        if cells:
            parts += ["", table(cells, [title, "loss", "accuracy %", "predictions"])]
    return "\n".join(parts)


def follow(
    list_steps: Callable[[], list[int]],
    read_heartbeat: Callable[[], HeartbeatRecord | None],
    *,
    stale_minutes: float,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """Yields each checkpoint's step once, in ascending order, as they appear.

    Ends by itself, and logs why: when training has finished and its last checkpoint was yielded,
    or without a heartbeat for `stale_minutes`. An evaluator that never ends keeps a rented machine.

    Args:
        list_steps: the steps of the checkpoints there are now.
        read_heartbeat: the run's heartbeat, or None before the first.
        stale_minutes: how old a heartbeat may be.
        clock: UNIX seconds.
        sleep: waits for so many seconds.
    """
    seen: set[int] = set()
    started = clock()
    while True:
        # Before the steps: a checkpoint that is written between the two is seen next time.
        heartbeat = read_heartbeat()
        fresh = next((step for step in sorted(list_steps()) if step not in seen), None)
        if fresh is not None:
            seen.add(fresh)
            yield fresh
            continue
        if reason := why_ended(heartbeat, started, clock(), stale_minutes):
            log(f"no more checkpoints to wait for: {reason}")
            return
        sleep(POLL_SECONDS)


def why_ended(
    heartbeat: HeartbeatRecord | None, started: float, now: float, stale_minutes: float
) -> str | None:
    """Why no further checkpoint will come, or None where one may."""
    if heartbeat and heartbeat["state"] == "stopped" and heartbeat.get("reason") == "finished":
        return f"training finished at step {heartbeat['global_step']:,}"
    last = max(started, heartbeat["time"] if heartbeat else 0.0)
    # A clock that runs ahead must not make an old heartbeat look fresh for ever.
    silent = now - min(last, now)
    if silent < stale_minutes * 60:
        return None
    state = heartbeat["state"] if heartbeat else "no heartbeat"
    return f"no heartbeat for {stale_minutes:g} minutes (last state: {state})"
