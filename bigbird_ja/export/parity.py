"""Comparison of an exported folder, loaded by transformers and PyTorch, with the trained model.

Token ids are compared on generated articles and on texts that are hard to tokenize.
Log-probabilities and masked-LM loss are compared on held-out records.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bigbird_ja.data.manifest import Manifest
from bigbird_ja.model_dir.model import TrainedModel
from bigbird_ja.storage import decode

# Number of records on which scores are compared.
_SEQUENCES = 4
# Tolerance of the mean difference of log-probabilities, and of the difference of the loss. It is
# relative to the mean log-probability times the square root of the number of layers, because
# rounding errors grow with this product. The value is 8 times float32's precision. Real encoders
# differ by at most a fifteenth of the tolerance. The difference of a single, unlikely token may be
# `_LARGEST` times the tolerance.
TOLERANCE = 1e-6
_LARGEST = 100
_ARTICLES = 20
_HARD_TEXTS = (
    "",
    " 前と後ろに空白 ",
    "半角ｶﾞｷﾞｸﾞﾊﾟﾋﾟ、全角ＡＢＣ１２３、㌔㍍①Ⅳ",
    "か\u3099き\u3099は\u309a　（濁点が別の文字）",
    "改行\nと\r\nタブ\tと  二つの空白",
    "_START_ARTICLE_ 題 _START_SECTION_ 節 _START_PARAGRAPH_ 段落_NEWLINE_次の行",
    "絵文字😀👨‍👩‍👧と珍しい字𠮷野家、ヷヸ",
    "「入れ子の『引用』です。」？！……――",
)


def compare(
    directory: str,
    model: TrainedModel,
    manifest: Manifest | None = None,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Compare an exported folder with the trained model, and return the parity report.

    If only token ids can be compared, the report contains the reason.

    Args:
        directory: Hugging Face folder, complete except for parity_report.json and README.md.
        model: trained model from which the folder was exported.
        manifest: manifest of the data set with held-out records, or None to compare only token
            ids.
        data_dir: folder of that data set.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    packages = ("transformers", "tokenizers", "sentencepiece")
    report: dict[str, Any] = {
        "step": model.meta.step,
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "tokenizer": _compare_tokenizers(directory, model),
    }
    try:
        import torch
    except ImportError:
        return {**report, "not_compared": "PyTorch is not installed: only token ids were compared"}
    report["versions"]["torch"] = torch.__version__
    if manifest is None or data_dir is None:
        return {**report, "not_compared": "without a data set only token ids were compared"}
    return {**report, **_compare_scores(directory, model, manifest, data_dir)}


def _compare_tokenizers(directory: str, model: TrainedModel) -> dict[str, Any]:
    import transformers

    from bigbird_ja.text import articles

    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    texts = [*_HARD_TEXTS, *articles.generate(_ARTICLES, seed=2)]
    our_ids = model.tokenizer.encode_batch(texts)
    their_ids = theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]
    same = [mine == other for mine, other in zip(our_ids, their_ids, strict=True)]
    return {
        "class": type(theirs).__name__,
        "texts": len(texts),
        "tokens": sum(map(len, our_ids)),
        "identical_texts": sum(same),
        "identical_articles": all(same[len(_HARD_TEXTS) :]),
        "agrees": all(same),
    }


def _compare_scores(
    directory: str, model: TrainedModel, manifest: Manifest, data_dir: str
) -> dict[str, Any]:
    batch = load_masked_records(manifest, data_dir)
    # transformers' own classes do not separate the documents of a packed record. If the folder
    # uses such a class, the trained model is run without separation, too.
    ours = score_trained(model, batch, manifest if _has_code(directory) else None)
    theirs = score_exported(directory, model, batch)
    counted = batch["masked_lm_weights"] > 0
    gap = np.abs(ours - theirs)[counted]
    ids = batch["masked_lm_ids"].astype(np.int64)[..., None]

    def compute_loss(scores: np.ndarray) -> float:
        return float(-np.take_along_axis(scores, ids, axis=-1)[..., 0][counted].mean())

    losses = {"bigbird_ja": compute_loss(ours), "exported": compute_loss(theirs)}
    depth = model.config.model.num_layers
    tolerance = float(TOLERANCE * depth**0.5 * np.abs(ours[counted]).mean())
    mean, largest = float(gap.mean()), float(gap.max())
    apart = abs(losses["exported"] - losses["bigbird_ja"])
    return {
        "sequences": len(batch["input_ids"]),
        "sequence_length": batch["input_ids"].shape[1],
        "scores": {
            "predictions": int(counted.sum()),
            "largest_difference": largest,
            "mean_difference": mean,
            "tolerance": tolerance,
            "agrees": max(mean, apart, largest / _LARGEST) <= tolerance,
        },
        "masked_lm_loss": losses,
    }


def describe_disagreement(report: Mapping[str, Any]) -> str | None:
    """Describe the difference in `report` between the results of exported and trained model.

    Return None if they agree. Different token ids in texts that are hard to tokenize
    (`_HARD_TEXTS`) do not count as a disagreement. The report and the model card only state the
    number of such texts.
    """
    tokenizer, scores = report.get("tokenizer", {}), report.get("scores", {})
    if not tokenizer.get("identical_articles", True):
        others = tokenizer["texts"] - tokenizer["identical_texts"]
        return (
            f"token ids by {tokenizer['class']} differ from training's in {others} of"
            f" {tokenizer['texts']} texts"
        )
    if not scores.get("agrees", True):
        losses = report["masked_lm_loss"]
        return (
            f"log-probabilities differ by {scores['mean_difference']:.2g} on average (tolerance"
            f" {scores['tolerance']:.2g}), and the masked-LM loss is {losses['exported']:.4f}"
            f" instead of {losses['bigbird_ja']:.4f}"
        )
    return None


def score_trained(
    model: TrainedModel, batch: dict[str, np.ndarray], manifest: Manifest | None = None
) -> np.ndarray:
    """Return the trained model's log-probabilities: float32 [batch, masks, vocabulary]."""
    import tensorflow as tf

    from bigbird_ja.data.parsing import number_documents
    from bigbird_ja.model.forward import Forward

    forward = Forward(model.config, model.data, model.params)
    ids, places = batch["input_ids"], batch["masked_lm_positions"]
    scores = []
    for i in range(len(ids)):  # One at a time, as a base model needs much memory at 4,096 tokens.
        row = slice(i, i + 1)
        documents = number_documents(manifest, tf.constant(ids[row])) if manifest else None
        scores.append(forward.compute_log_probabilities(ids[row], places[row], documents))
    return np.concatenate(scores)


def score_exported(directory: str, model: TrainedModel, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return the exported model's log-probabilities: float32 [batch, masks, vocabulary]."""
    import torch
    import transformers

    from bigbird_ja.export.modeling_bigbird_ja import BigBirdJaForMaskedLM, document_numbers

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()  # transformers would warn of the unused pooler.
    has_code = _has_code(directory)
    kind = BigBirdJaForMaskedLM if has_code else transformers.AutoModelForMaskedLM
    loaded = kind.from_pretrained(directory).eval()
    special = model.tokenizer.special
    scores = []
    for row, places in zip(batch["input_ids"], batch["masked_lm_positions"], strict=True):
        ids = torch.from_numpy(row[None].astype(np.int64))
        mask = (ids != special.pad).long()
        if has_code and not model.config.model.attend_across_documents:
            mask = document_numbers(ids, special.sep, special.pad)
        with torch.no_grad():
            logits = loaded(input_ids=ids, attention_mask=mask).logits[0, places.astype(np.int64)]
        scores.append(torch.log_softmax(logits, dim=-1).numpy())
    return np.stack(scores)


def _has_code(directory: str) -> bool:
    """Return whether the model of an exported folder needs the Python code in that folder."""
    config = decode.read_json(os.path.join(directory, "config.json"), dict[str, Any])
    return "auto_map" in config


def load_masked_records(manifest: Manifest, data_dir: str) -> dict[str, np.ndarray]:
    """Return a masked batch of the first held-out records of a data set."""
    from bigbird_ja.data import pipeline

    count = min(_SEQUENCES, manifest.eval.sequences)
    batches = pipeline.read_eval_batches(manifest, data_dir, batch_size=count)
    return {name: value.numpy() for name, value in next(iter(batches)).items()}


def format_report(report: dict[str, Any]) -> str:
    """Format the report for users."""
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    lines = [f"compared with {versions}:"]
    if tokenizer := report.get("tokenizer"):
        lines.append(
            f"- token ids ({tokenizer['class']}): identical in {tokenizer['identical_texts']} of"
            f" {tokenizer['texts']} texts, {tokenizer['tokens']:,} tokens"
        )
    if scores := report.get("scores"):
        verdict = "agree" if scores["agrees"] else "DO NOT AGREE"
        losses = report["masked_lm_loss"]
        lines += [
            f"- log-probabilities in PyTorch on {report['sequences']} sequences of"
            f" {report['sequence_length']:,} tokens (held-out records): {verdict}, mean difference"
            f" {scores['mean_difference']:.2g} (tolerance {scores['tolerance']:.2g}), largest"
            f" {scores['largest_difference']:.2g}",
            f"- masked-LM loss there: {losses['bigbird_ja']:.4f} in training's code,"
            f" {losses['exported']:.4f} in the exported one's (nats)",
        ]
    if "not_compared" in report:
        lines.append(f"- not compared: {report['not_compared']}")
    return "\n".join(lines)
