"""What is exported: a checkpoint's model, its tokenizer, and the logs of its run."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import Meta
from bigbird_ja.run.model import check_tokenizer, load_parameters, load_tokenizer
from bigbird_ja.run.records import Evaluation, EventRecord, MetricsRecord
from bigbird_ja.settings.schema import Config
from bigbird_ja.text.tokenizer import Tokenizer

POSITIONS = "bert/embeddings/position_embeddings"


@dataclass(frozen=True)
class Source:
    """A trained model with its story."""

    model_dir: str
    config: Config
    params: dict[str, np.ndarray]
    meta: Meta
    tokenizer: Tokenizer
    metrics: MetricsRecord | None = None  # the last logged step up to the checkpoint
    evaluation: Evaluation | None = None  # the newest one of this step
    events: list[EventRecord] = field(default_factory=list)
    extended_from: int | None = None  # positions trained, where they were extended
    data_dir: str | None = None  # the data set it was trained on, where it was given
    manifest: Manifest | None = None  # of `data_dir`


def load(model_dir: str, step: int | None = None) -> Source:
    """Reads MODEL_DIR.

    Raises:
        BadInput: no checkpoint, no tokenizer, or files that do not belong together.
    """
    config, params, meta = load_parameters(model_dir, step)
    tokenizer = load_tokenizer(model_dir, config, meta)
    metrics = [m for m in run_log.read_metrics(model_dir) if m["step"] <= meta.step]
    evaluations = [e for e in run_log.read_evaluations(model_dir) if e["step"] == meta.step]
    return Source(
        model_dir=model_dir,
        config=config,
        params=params,
        meta=meta,
        tokenizer=tokenizer,
        metrics=metrics[-1] if metrics else None,
        evaluation=evaluations[-1] if evaluations else None,
        events=run_log.read_events(model_dir),
    )


def with_data_set(source: Source, data_dir: str) -> Source:
    """The source with the data set that it was trained on: for card and comparison.

    Raises:
        BadInput: it is another data set, or the tokenizer in MODEL_DIR is not its tokenizer.
    """
    manifest = manifest_lib.load(data_dir)
    trained = source.meta.data_fingerprint
    if manifest.fingerprint != trained:
        raise BadInput(
            f"--data_dir {data_dir} (fingerprint {manifest.fingerprint[:12]}) is not the data set"
            f" that {source.model_dir} was trained on ({trained[:12]}): give that one, or leave"
            " --data_dir out"
        )
    check_tokenizer(source.model_dir, manifest.tokenizer_sha256)
    return replace(source, data_dir=data_dir, manifest=manifest)


def extend_positions(source: Source, max_position: int) -> Source:
    """The same model for longer sequences: its position embeddings repeated, end to end.

    Copies keep what neighbouring positions mean to each other, which new random ones would not
    (Beltagy et al. 2020, section 5); continued pretraining has to do the rest.

    Raises:
        BadInput: fewer positions than trained.
    """
    trained = source.params[POSITIONS]
    if max_position < len(trained):
        raise BadInput(
            f"--max_position={max_position}: the model was trained with {len(trained)} positions;"
            " it can be extended, not cut"
        )
    if max_position == len(trained):
        return source
    copies = -(-max_position // len(trained))
    config = deepcopy(source.config)
    config.model.max_position_embeddings = max_position
    params = {**source.params, POSITIONS: np.tile(trained, (copies, 1))[:max_position]}
    return replace(source, config=config, params=params, extended_from=len(trained))
