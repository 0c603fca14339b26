"""Evaluates checkpoints of a run, or an exported model, on one data set."""

import time
from collections.abc import Mapping
from typing import Any

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.evaluation import masked_lm
from bigbird_ja.evaluation.trained_model import TrainedModel, is_export, load_model
from bigbird_ja.process.console import Progress, log, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.storage.ownership import Owned


class Evaluator:
    """Evaluates what one `evaluate` command names; an exported folder is never written to."""

    def __init__(
        self,
        model_dir: str,
        data_dir: str,
        manifest: Manifest,
        max_batches: int | None = None,
    ) -> None:
        """Take the folders and the data set's manifest."""
        self.model_dir, self._data_dir, self._manifest = model_dir, data_dir, manifest
        self._max_batches = max_batches
        self._is_export = is_export(model_dir)
        # Nothing is written to a folder that `pretrain` did not mark.
        self._is_marked = not self._is_export and Owned.load(model_dir) is not None

    def choose(self, wanted: str) -> list[int | None]:
        """Return the steps that `--step` means; None for an export's only one.

        Raises:
            BadInput: no checkpoint, or not that one.
        """
        if self._is_export:
            if wanted != "latest":
                raise BadInput(f"--step: {self.model_dir} is an export: give a MODEL_DIR")
            return [None]
        steps = CheckpointStore(self.model_dir).steps()
        if not steps:
            raise BadInput(f"{self.model_dir}: no checkpoint here: train first")
        chosen = {"all": steps, "latest": steps[-1:], **{str(step): [step] for step in steps}}
        if wanted not in chosen:
            raise BadInput(
                f"--step {wanted}: no checkpoint of step {wanted} in {self.model_dir}: give one of"
                f" {', '.join(map(str, steps))}, 'latest' or 'all'"
            )
        return [*chosen[wanted]]

    def evaluate(self, step: int | None) -> dict[str, Any]:
        """Evaluate one checkpoint, or repeat what is recorded of it; print it."""
        result = self._recorded(step)
        if result is None:
            result = self._measure(self._load(step))
        else:
            log(f"checkpoint {step} was evaluated on this data before: see eval.jsonl")
        print(as_text(result))
        return dict(result)

    def _recorded(self, step: int | None) -> Mapping[str, Any] | None:
        """Find the newest line of `eval.jsonl` about this step on this data."""
        lines = [] if self._is_export else run_log.read_evaluations(self.model_dir)
        wanted = (step, self._manifest.fingerprint, self._max_batches)
        for line in reversed(lines):
            if (line["step"], line.get("data_fingerprint"), line.get("max_batches")) == wanted:
                return line
        return None

    def _load(self, step: int | None) -> TrainedModel:
        """Load the model.

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
        from bigbird_ja.model.forward import Forward

        total = -(-self._manifest.eval.sequences // masked_lm.batch_size(self._manifest.seq_length))
        with Progress(min(total, self._max_batches or total), "batches") as progress:
            measured = masked_lm.evaluate_model(
                Forward(model.config, model.data, model.params),
                self._data_dir,
                self._manifest,
                max_batches=self._max_batches,
                tick=lambda: progress.update(1),
            )
        assert measured is not None  # this process has all parts
        result = {"step": model.step, "time": round(time.time(), 3), **measured}
        if self._is_marked:  # a run of ours
            run_log.append_eval(self.model_dir, result)
            masked_lm.write_tensorboard(self.model_dir, model.step, result, result["time"])
        return result


def as_text(result: Mapping[str, Any]) -> str:
    """Write the tables that `evaluate` prints."""
    rows = [
        ("masked-LM loss (nats)", result["masked_lm_loss"]),
        ("masked-LM accuracy (%)", _percent(result["masked_lm_accuracy"])),
        ("perplexity", result.get("perplexity")),
        ("bits per character", result.get("bits_per_character")),
    ]
    if "next_sentence_accuracy" in result:
        percent = _percent(result["next_sentence_accuracy"])
        rows.append(("next-sentence accuracy (%)", percent))
    parts = [
        f"step {result['step']:,}: {result.get('predictions', 0):,} predictions in"
        f" {result.get('sequences', 0):,} held-out sequences",
        table(rows, ["measure", "value"]),
    ]
    for key, title in (
        ("by_position", "position in the sequence"),
        ("by_distance", "tokens to the nearest visible same piece"),
    ):
        cells = [
            (masked_lm.row_name(row), row["loss"], _percent(row["accuracy"]), row["count"])
            for row in result.get(key, [])
        ]
        if cells:
            parts += ["", table(cells, [title, "loss", "accuracy %", "predictions"])]
    return "\n".join(parts)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
