"""Evaluating checkpoints of a run: what was done before, what is printed, what is written."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data.manifest import TOKENIZER_NAME, Manifest
from bigbird_ja.evaluation import masked_lm, tensorboard
from bigbird_ja.process.console import Progress, log, table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore, Meta
from bigbird_ja.run.model import check_tokenizer, load_parameters, tokenizer_sha256
from bigbird_ja.run.records import Evaluation, HeartbeatRecord
from bigbird_ja.settings.schema import Config
from bigbird_ja.text.corpus import Corpus

_PERCENT = 100.0


@dataclass(frozen=True)
class ProbeRequest:
    """What `--probe` asks for."""

    corpus: Corpus | None  # to read instead of the held-out records
    names: str  # facts | rare
    max_cases: int
    plot: str | None  # PNG file


@dataclass
class Evaluator:
    """Evaluates the checkpoints of one run on one data set, as one `evaluate` command asks."""

    model_dir: str
    data_dir: str
    manifest: Manifest
    max_batches: int | None = None
    probe: ProbeRequest | None = None
    clock: Callable[[], float] = time.time

    def steps(self) -> list[int]:
        """The checkpoints there are now."""
        return CheckpointStore(self.model_dir).steps()

    def heartbeat(self) -> HeartbeatRecord | None:
        """The run's heartbeat."""
        return run_log.read_heartbeat(self.model_dir)

    def choose(self, wanted: str) -> list[int]:
        """The steps that `--step` means.

        Raises:
            BadInput: no checkpoint, or not that one.
        """
        steps = self.steps()
        if not steps:
            raise BadInput(f"{self.model_dir}: no checkpoint here: train first")
        if wanted == "all":
            return steps
        if wanted == "latest":
            return steps[-1:]
        if not wanted.isdigit():
            raise BadInput(f"--step={wanted}: a global step, 'latest' or 'all'")
        if int(wanted) not in steps:
            raise BadInput(f"{self.model_dir}: no checkpoint of step {wanted}; there are {steps}")
        return [int(wanted)]

    def evaluate_if_there(self, step: int) -> dict[str, Any] | None:
        """`evaluate`, or None where retention has removed the checkpoint meanwhile."""
        try:
            return self.evaluate(step)
        except (BadInput, FileNotFoundError):
            if step in self.steps():
                raise
            log(f"checkpoint {step} was removed before it could be evaluated")
            return None

    def evaluate(self, step: int) -> dict[str, Any]:
        """Evaluates one checkpoint, or repeats what is recorded of it; prints it."""
        config, params = None, None
        result: Mapping[str, Any] | None = self._recorded(step)
        if result is None:
            config, params = self._load(step)
            result = self._measure(config, params, step)
        else:
            log(f"checkpoint {step} was evaluated on this data before: see eval.jsonl")
        print(as_text(result))
        if self.probe is not None:
            if config is None or params is None:
                config, params = self._load(step)
            result = {**result, "probe": self._run_probe(config, params, step)}
        return dict(result)

    def _load(self, step: int) -> tuple[Config, dict[str, np.ndarray]]:
        """The model of a checkpoint.

        Raises:
            BadInput: it was made for other data than this.
        """
        config, params, meta = load_parameters(self.model_dir, step)
        if config.model.vocab_size != self.manifest.vocab_size:
            raise BadInput(
                f"{self.data_dir} has a vocabulary of {self.manifest.vocab_size:,}, the model in"
                f" {self.model_dir} one of {config.model.vocab_size:,}: give the data it was"
                " trained on"
            )
        if (config.model.max_position_embeddings or 0) < self.manifest.seq_length:
            raise BadInput(
                f"{self.data_dir} has sequences of {self.manifest.seq_length:,} tokens, the model"
                f" in {self.model_dir} takes {config.model.max_position_embeddings:,}"
            )
        self._check_tokenizer(meta)
        if meta.data_fingerprint != self.manifest.fingerprint:
            log(
                f"note: {self.data_dir} is not the data set that {self.model_dir} was trained on:"
                " its held-out records may be among the training records of that one"
            )
        return config, params

    def _check_tokenizer(self, meta: Meta) -> None:
        """Refuses data whose ids mean other pieces than the model learned.

        Raises:
            BadInput: data, run and MODEL_DIR do not have one tokenizer.
        """
        check_tokenizer(self.model_dir, meta.tokenizer_sha256)
        trained = meta.tokenizer_sha256 or tokenizer_sha256(self.model_dir)
        stated = self.manifest.tokenizer_sha256
        if trained and stated and trained != stated:
            raise BadInput(
                f"{self.data_dir} was made with another tokenizer (SHA-256 {stated[:12]}) than the"
                f" run in {self.model_dir} ({trained[:12]}): give data made with that one"
            )

    def _measure(self, config: Config, params: dict[str, np.ndarray], step: int) -> dict[str, Any]:
        from bigbird_ja.evaluation.forward import Forward

        size = masked_lm.batch_size(self.manifest.seq_length)
        total = -(-self.manifest.eval.sequences // size)
        total = min(total, self.max_batches or total)
        with Progress(total, "batches") as progress:
            found = masked_lm.evaluate_model(
                Forward(config, params),
                self.data_dir,
                self.manifest,
                max_batches=self.max_batches,
                tick=lambda: progress.update(1),
            )
        result = {"step": step, "time": round(self.clock(), 3), **found}
        run_log.append_eval(self.model_dir, result)
        tensorboard.write_evaluation(self.model_dir, step, result)
        tokenizer = self._tokenizer()
        if tokenizer is not None:
            tensorboard.write_projector(self.model_dir, params, tokenizer)
        return result

    def _recorded(self, step: int) -> Evaluation | None:
        """What `eval.jsonl` says of this step on this data, the newest line."""
        for line in reversed(run_log.read_evaluations(self.model_dir)):
            same_data = line.get("data_fingerprint") == self.manifest.fingerprint
            same_part = line.get("max_batches") == self.max_batches
            if line["step"] == step and same_data and same_part:
                return line
        return None

    def _tokenizer(self) -> Any:
        from bigbird_ja.text import tokenizer

        path = storage.join(self.data_dir, TOKENIZER_NAME)
        return tokenizer.load(path) if storage.exists(path) else None

    def _run_probe(
        self, config: Config, params: dict[str, np.ndarray], step: int
    ) -> dict[str, Any]:
        from bigbird_ja.data.parsing import document_ids
        from bigbird_ja.evaluation import probe, probe_plot
        from bigbird_ja.evaluation.forward import Forward

        assert self.probe is not None
        tokenizer = self._tokenizer()
        if tokenizer is None:
            raise BadInput(f"{self.data_dir}: no {TOKENIZER_NAME}, which --probe needs")
        log("probe: reading text")
        names = probe.generated_names if self.probe.names == "facts" else probe.repeated_names
        found = probe.run(
            Forward(config, params, functools.partial(document_ids, self.manifest)),
            tokenizer,
            self._probe_records(tokenizer),
            names,
            max_cases=self.probe.max_cases,
            batch_size=masked_lm.batch_size(self.manifest.seq_length),
        )
        if not found["cases"]:
            raise BadInput(
                "--probe found no repeated name in this text: try --probe_names=rare, more text by"
                " --probe_input, or a larger --eval_fraction when making the data"
            )
        result = {"step": step, "time": round(self.clock(), 3), "probe": found}
        run_log.append_eval(self.model_dir, result)
        print(probe_as_text(found))
        if self.probe.plot:
            probe_plot.draw(found, self.probe.plot, f"Names filled in again, step {step:,}")
            print(f"curve: {self.probe.plot}")
        return found

    def _probe_records(self, tokenizer: Any) -> list[np.ndarray]:
        from bigbird_ja.data import pipeline
        from bigbird_ja.evaluation import probe

        assert self.probe is not None
        length = self.manifest.seq_length
        if self.probe.corpus:
            texts = (document.text for document in self.probe.corpus.documents())
            return list(probe.documents_as_ids(texts, tokenizer, length))
        batches = pipeline.eval_batches(self.manifest, self.data_dir, batch_size=8)
        return list(probe.records_as_ids(batches, self.manifest.pad_id))


def as_text(result: Mapping[str, Any]) -> str:
    """The table that `evaluate` prints."""
    per_character = result.get("bits_per_character")
    rows: list[tuple[str, Any]] = [
        ("masked-LM loss (nats)", result["masked_lm_loss"]),
        ("masked-LM accuracy (%)", _percent(result["masked_lm_accuracy"])),
        ("perplexity", result.get("perplexity")),
        ("bits per character", per_character),
    ]
    if "next_sentence_accuracy" in result:
        rows.append(("next-sentence accuracy (%)", _percent(result["next_sentence_accuracy"])))
    parts = [
        f"step {result['step']:,}: {result.get('predictions', 0):,} predictions in"
        f" {result.get('sequences', 0):,} held-out sequences",
        table(rows, ["measure", "value"]),
    ]
    for key, title in (
        ("by_position", "position in the sequence"),
        ("by_distance", "tokens to the nearest visible same piece"),
    ):
        parts += ["", _bucket_table(result.get(key, []), title)]
    if result.get("by_sub_corpus"):
        cells = [
            (row["name"], row["loss"], _percent(row["accuracy"]), row["count"])
            for row in result["by_sub_corpus"]
        ]
        parts += ["", table(cells, ["corpus", "loss", "accuracy %", "predictions"])]
    return "\n".join(parts)


def probe_as_text(found: dict[str, Any]) -> str:
    """The probe's table: share of the names' tokens that each guess gets right, in per cent."""
    rows = [
        (
            span(row),
            row["count"],
            *(_PERCENT * row[key] for key in ("model", "window", "unigram", "model_names")),
        )
        for row in found["by_distance"]
    ]
    header = [
        "tokens back",
        "names",
        "model %",
        f"{found['window_tokens']} tokens %",
        "constant %",
        "model, whole names %",
    ]
    return f"\nprobe: {found['cases']:,} masked names\n" + table(rows, header)


def _bucket_table(rows: list[dict[str, Any]], title: str) -> str:
    cells = [(span(row), row["loss"], _percent(row["accuracy"]), row["count"]) for row in rows]
    return table(cells, [title, "loss", "accuracy %", "predictions"])


def span(row: dict[str, Any]) -> str:
    """A bucket's bounds for people."""
    if row["from"] is None or row["to"] is None:
        return "nowhere else"
    return f"{row['from']}-{row['to'] - 1}"


def _percent(share: float | None) -> float | None:
    return None if share is None else _PERCENT * share
