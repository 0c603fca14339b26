"""Does the exported folder compute what the trained model computes? Measured where PyTorch is.

Compared: token ids, on generated articles and hard cases; and log-probabilities and masked-LM loss
of the folder's code beside the weights, on held-out records or generated text.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bigbird_ja.export.source import Source

TOLERANCE = 1e-4  # of log-probabilities, absolute
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


def compare(directory: str, source: Source, num_sequences: int) -> dict[str, Any]:
    """The parity report of a folder: what was compared, with figures, and what was not and why.

    Args:
        directory: the Hugging Face folder, complete but for report and card.
        source: what it was made from; with a data set its held-out records are compared on, else
            generated text.
        num_sequences: how many records; 0 compares no model.
    """
    report: dict[str, Any] = {"tolerance": TOLERANCE, "step": source.meta.step, "versions": {}}
    try:
        import transformers
    except ImportError:
        report["not_compared"] = "transformers is not installed: neither token ids nor scores"
        return report
    for name in ("transformers", "tokenizers", "sentencepiece"):
        report["versions"][name] = importlib.metadata.version(name)
    with _quiet():
        report["tokenizer"] = _compare_tokenizers(directory, source, transformers)
        try:
            import torch
        except ImportError:
            report["not_compared"] = "PyTorch is not installed: token ids alone were compared"
            return report
        report["versions"]["torch"] = torch.__version__
        if num_sequences:
            report.update(_compare_models(directory, source, num_sequences))
        else:
            report["not_compared"] = "--parity_sequences=0: token ids alone were compared"
    return report


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' warnings of what is meant: no pooler, short sequences."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _compare_tokenizers(directory: str, source: Source, transformers: Any) -> dict[str, Any]:
    from bigbird_ja.text import articles

    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    texts = [*_HARD_TEXTS, *articles.documents(_ARTICLES, seed=2)]
    our_ids = source.tokenizer.encode_batch(texts)
    their_ids = theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]
    same = [mine == other for mine, other in zip(our_ids, their_ids, strict=True)]
    return {
        "class": type(theirs).__name__,
        "texts": len(texts),
        "tokens": sum(map(len, our_ids)),
        "identical_texts": sum(same),
        "agrees": all(same),
    }


def _compare_models(directory: str, source: Source, num_sequences: int) -> dict[str, Any]:
    batch = masked_records(source, num_sequences)
    ours, theirs = our_scores(source, batch), their_scores(directory, source, batch)
    counted = batch["masked_lm_weights"] > 0
    gap = np.abs(ours - theirs)[counted]
    ids = batch["masked_lm_ids"].astype(np.int64)[..., None]

    def loss(scores: np.ndarray) -> float:
        return float(-np.take_along_axis(scores, ids, axis=-1)[..., 0][counted].mean())

    return {
        "sequences": len(batch["input_ids"]),
        "sequence_length": batch["input_ids"].shape[1],
        "text": "held-out records" if source.manifest else "generated articles",
        "scores": {
            "predictions": int(counted.sum()),
            "largest_difference": float(gap.max()),
            "mean_difference": float(gap.mean()),
            "agrees": bool(gap.max() <= TOLERANCE),
        },
        "masked_lm_loss": {"bigbird_ja": loss(ours), "exported": loss(theirs)},
    }


def our_scores(source: Source, batch: dict[str, np.ndarray]) -> np.ndarray:
    """The trained model's log-probabilities at the masked places: float32 [b, P, vocabulary]."""
    from bigbird_ja.data.tfrecords import document_ids
    from bigbird_ja.evaluation.forward import Forward

    documents = functools.partial(document_ids, source.manifest) if source.manifest else None
    forward = Forward(source.config, source.params, documents)
    ids, places = batch["input_ids"], batch["masked_lm_positions"]
    rows = range(len(ids))  # one at a time: base models at 4,096 are large
    return np.concatenate(
        [forward.log_probabilities(ids[i : i + 1], places[i : i + 1]) for i in rows]
    )


def their_scores(
    directory: str, source: Source, batch: dict[str, np.ndarray], **loading: Any
) -> np.ndarray:
    """The same by the exported folder's code; `loading` goes to its `from_pretrained`."""
    import torch

    from bigbird_ja.model.modeling_bigbird_ja import BigBirdJaForMaskedLM, document_numbers

    model = BigBirdJaForMaskedLM.from_pretrained(directory, **loading).eval()
    special = source.tokenizer.special
    scores = []
    for row, places in zip(batch["input_ids"], batch["masked_lm_positions"], strict=True):
        ids = torch.from_numpy(row[None].astype(np.int64))
        mask = (ids != special.pad).long()
        if not source.config.model.attend_across_documents:
            mask = document_numbers(ids, special.sep, special.pad)
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits[0, places.astype(np.int64)]
        scores.append(torch.log_softmax(logits, dim=-1).numpy())
    return np.stack(scores)


def masked_records(source: Source, count: int) -> dict[str, np.ndarray]:
    """Masked records: held-out ones, or generated text masked here."""
    if source.manifest and source.data_dir:
        from bigbird_ja.data import pipeline

        count = min(count, source.manifest.eval.sequences)
        batches = pipeline.eval_batches(source.manifest, source.data_dir, batch_size=count)
        return {name: value.numpy() for name, value in next(iter(batches)).items()}
    from bigbird_ja.text import articles

    special = source.tokenizer.special
    length = source.config.make_data.seq_length or source.config.model.max_position_embeddings
    assert length is not None
    texts = itertools.chain.from_iterable(
        articles.documents(50, seed=seed) for seed in itertools.count(3)
    )
    ids = itertools.chain.from_iterable(map(source.tokenizer.encode, texts))
    rows = np.array([list(itertools.islice(ids, length)) for _ in range(count)], np.int32)
    used = length * 2 // 3
    rows[:, 0], rows[:, -1] = special.cls, special.sep
    rows[0, used:] = special.pad  # one row that ends early
    random = np.random.Generator(np.random.PCG64(0))
    drawn = [np.sort(random.permutation(used - 2)[: max(1, length // 8)]) + 1 for _ in rows]
    places = np.array(drawn, np.int32)
    truth = np.take_along_axis(rows, places, axis=1)
    np.put_along_axis(rows, places, special.mask, axis=1)
    return {
        "input_ids": rows,
        "masked_lm_positions": places,
        "masked_lm_ids": truth,
        "masked_lm_weights": np.ones(places.shape, np.float32),
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items()) or "nothing"
    lines = [
        "# Parity report",
        f"Checkpoint of step {report['step']:,}. Compared with: {versions}.",
    ]
    if tokenizer := report.get("tokenizer"):
        lines.append(
            f"- Token ids ({tokenizer['class']}): identical in {tokenizer['identical_texts']} of"
            f" {tokenizer['texts']} texts, {tokenizer['tokens']:,} tokens (generated articles and"
            " hard cases)."
        )
    if scores := report.get("scores"):
        verdict = "agree" if scores["agrees"] else "DO NOT AGREE"
        losses = report["masked_lm_loss"]
        lines += [
            f"- Log-probabilities of `modeling_bigbird_ja.py` on {report['sequences']} sequences of"
            f" {report['sequence_length']:,} tokens ({report['text']}): {verdict}, largest"
            f" difference {scores['largest_difference']:.2g}.",
            f"- Masked-LM loss there: {losses['bigbird_ja']:.4f} in training's code,"
            f" {losses['exported']:.4f} in the exported one's (nats).",
        ]
    if "not_compared" in report:
        lines.append(f"Not compared: {report['not_compared']}.")
    return "\n\n".join(lines) + "\n"
