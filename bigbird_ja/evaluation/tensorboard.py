"""Evaluation in TensorBoard: scalars, masked examples over time, the vocabulary in the projector.

Written to `MODEL_DIR/eval/`, a run of its own, so that evaluating an older checkpoint later hides
nothing: files are made locally and stored whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.evaluation.examples import as_markdown
from bigbird_ja.storage.scratch import scratch_directory

if TYPE_CHECKING:
    from bigbird_ja.text.tokenizer import Tokenizer

FOLDER = "eval"
_EMBEDDINGS = "bert/embeddings/word_embeddings"
# The commonest pieces come first in a SentencePiece model; the projector is slow with many more.
_MOST_PIECES = 10_000


def write_evaluation(model_dir: str, step: int, result: Mapping[str, Any]) -> None:
    """Adds one evaluation: `eval/...` scalars, `eval/by_position/...`, and `eval/examples`."""
    import tensorflow as tf

    with scratch_directory() as scratch:
        # A name of its own for each evaluation, the same if it is made again.
        writer = tf.summary.create_file_writer(scratch, filename_suffix=f".step-{step}")
        with writer.as_default(step=step):
            for tag, value in scalars(result).items():
                tf.summary.scalar(tag, value)
            if result.get("examples"):
                tf.summary.text("eval/examples", as_markdown(list(result["examples"])))
        writer.close()
        _store(scratch, storage.join(model_dir, FOLDER))


def scalars(result: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value for every number of a result: buckets' accuracies, corpora's losses."""
    found = {
        f"eval/{name}": float(value)
        for name, value in result.items()
        if isinstance(value, (int, float)) and name not in ("step", "time", "max_batches")
    }
    for group in ("by_position", "by_distance"):
        for row in result.get(group, []):
            label = "none" if row["from"] is None else f"{row['from']:05d}"
            found[f"eval/{group}/{label}"] = float(row["accuracy"])
    for row in result.get("by_sub_corpus", []):
        found[f"eval/by_corpus/{row['name']}"] = float(row["loss"])
    return found


def write_projector(model_dir: str, params: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> None:
    """The vocabulary's embeddings for TensorBoard's projector, labelled with their pieces."""
    vectors = np.asarray(params[_EMBEDDINGS][:_MOST_PIECES], "<f4")
    rows = [piece.replace("\t", " ").replace("\n", " ") for piece in tokenizer.pieces]
    config = (
        "embeddings {\n"
        f'  tensor_name: "{_EMBEDDINGS}"\n'
        '  tensor_path: "vocabulary.bytes"\n'
        '  metadata_path: "vocabulary.tsv"\n'
        f"  tensor_shape: {len(vectors)}\n"
        f"  tensor_shape: {vectors.shape[1]}\n"
        "}\n"
    )
    folder = storage.join(model_dir, FOLDER)
    storage.make_directory(folder)
    storage.write_bytes(storage.join(folder, "vocabulary.bytes"), vectors.tobytes())
    labels = "\n".join(rows[: len(vectors)]) + "\n"
    storage.write_text(storage.join(folder, "vocabulary.tsv"), labels)
    storage.write_text(storage.join(folder, "projector_config.pbtxt"), config)


def _store(scratch: str, folder: str) -> None:
    storage.make_directory(folder)
    for name in sorted(os.listdir(scratch)):
        storage.upload(os.path.join(scratch, name), storage.join(folder, name))
