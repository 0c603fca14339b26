"""Does the exported folder compute what our model computes? Measured with PyTorch, where installed.

Compared: token ids (on generated articles, on hard cases, and on held-out text); scores in full
attention; scores in block-sparse attention over the same random plan, for the `independent`
pattern; scores of the folder's own code; masked-LM loss on held-out records of ours, of Hugging
Face's block-sparse attention as it runs (outside training it points every random block at block 0),
of its full attention, and of the folder's own code.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bigbird_ja.export import hf_attention
from bigbird_ja.export.source import Source
from bigbird_ja.settings.values import set_value

TOLERANCE = 1e-4  # of scores (logits), absolute
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
        if not num_sequences:
            report["not_compared"] = "--parity_sequences=0: token ids alone were compared"
            return report
        report.update(_compare_models(directory, source, num_sequences))
    return report


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers warns of what is meant: no pooler, short sequences in full attention."""
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
    ours = source.tokenizer.encode_batch(texts)
    found = theirs(texts, add_special_tokens=False, verbose=False)["input_ids"]
    same = [mine == other for mine, other in zip(ours, found, strict=True)]
    return {
        "class": type(theirs).__name__,
        "texts": len(texts),
        "tokens": sum(map(len, ours)),
        "identical_texts": sum(same),
        "agrees": all(same),
    }


def _compare_models(directory: str, source: Source, num_sequences: int) -> dict[str, Any]:
    batch = _records(source, num_sequences)
    theirs = _load(directory)
    config = source.config
    result: dict[str, Any] = {
        "sequences": len(batch["input_ids"]),
        "sequence_length": batch["input_ids"].shape[1],
        "text": "held-out records" if source.manifest else "generated articles",
        "original_full": _difference(
            _our_scores(source, "original_full", batch), _their_scores(theirs("full"), batch), batch
        ),
    }
    sparse = config.model.attention_type != "original_full"
    if not sparse:
        result["block_sparse"] = {"compared": False, "why": "the model has full attention"}
    elif (blocks := hf_attention.random_blocks(source.config, batch["input_ids"].shape[1])) is None:
        why = "the sequences are so short that attention is full"
        result["block_sparse"] = {"compared": False, "why": why}
    else:
        with hf_attention.same_plan(blocks):
            found = _their_scores(hf_attention.with_random_blocks(theirs("sparse"), blocks), batch)
        ours = _our_scores(source, "block_sparse", batch)
        result["block_sparse"] = {"compared": True, **_difference(ours, found, batch)}
    own = _their_scores(theirs("own code"), batch, _numbers(source, batch))
    ours = _our_scores(source, config.model.attention_type, batch)
    result["own_code"] = _difference(ours, own, batch)
    result["masked_lm_loss"] = _losses(source, theirs, batch, sparse)
    result["masked_lm_loss"]["own_code"] = _loss(own, batch)
    return result


def _numbers(source: Source, batch: dict[str, np.ndarray]) -> np.ndarray | None:
    """The documents of each record, where the model keeps them apart."""
    if source.config.model.attend_across_documents:
        return None
    import torch

    from bigbird_ja.model.modeling_bigbird_ja import document_numbers

    special = source.tokenizer.special
    ids = torch.from_numpy(batch["input_ids"].astype(np.int64))
    return document_numbers(ids, special.sep, special.pad).numpy()


def _records(source: Source, count: int) -> dict[str, np.ndarray]:
    """Masked records: held-out ones, or generated text masked here."""
    if source.manifest and source.data_dir:
        from bigbird_ja.data import pipeline

        count = min(count, source.manifest.eval.sequences)
        batches = pipeline.eval_batches(source.manifest, source.data_dir, batch_size=count)
        return {name: value.numpy() for name, value in next(iter(batches)).items()}
    return _generated_records(source, count)


def _generated_records(source: Source, count: int) -> dict[str, np.ndarray]:
    special = source.tokenizer.special
    length = source.config.make_data.seq_length or source.config.model.max_position_embeddings
    assert length is not None
    ids = itertools.chain.from_iterable(
        source.tokenizer.encode(text) for text in itertools.chain.from_iterable(_endless())
    )
    random = np.random.Generator(np.random.PCG64(0))
    rows = np.array([list(itertools.islice(ids, length)) for _ in range(count)], np.int32)
    rows[:, 0], rows[:, -1] = special.cls, special.sep
    rows[0, length * 2 // 3 :] = special.pad  # one row that ends early
    number = max(1, length // 8)
    used = length * 2 // 3 - 2
    places = np.stack(
        [np.sort(random.permutation(used)[:number]) + 1 for _ in range(count)]
    ).astype(np.int32)
    truth = np.take_along_axis(rows, places, axis=1)
    np.put_along_axis(rows, places, special.mask, axis=1)
    return {
        "input_ids": rows,
        "segment_ids": np.zeros_like(rows),
        "masked_lm_positions": places,
        "masked_lm_ids": truth,
        "masked_lm_weights": np.ones(places.shape, np.float32),
    }


def _endless() -> Iterator[Iterator[str]]:
    from bigbird_ja.text import articles

    for seed in itertools.count(3):
        yield articles.documents(50, seed=seed)


def _load(directory: str) -> Any:
    """A function from `full`, `sparse` or `own code` to a model of that attention."""
    import transformers

    def load(kind: str) -> Any:
        if kind == "own code":
            from bigbird_ja.model.modeling_bigbird_ja import BigBirdJaForMaskedLM

            return BigBirdJaForMaskedLM.from_pretrained(directory).eval()
        attention = {"full": "original_full", "sparse": "block_sparse"}[kind]
        model = transformers.AutoModelForMaskedLM.from_pretrained(
            directory, attention_type=attention
        )
        return model.eval()

    return load


def _their_scores(
    model: Any, batch: dict[str, np.ndarray], numbers: np.ndarray | None = None
) -> np.ndarray:
    """Hugging Face's logits at the masked places: float32 [b, P, vocabulary]; with `numbers`, of
    models that tell documents apart by them."""
    import torch

    found = []
    for row in range(len(batch["input_ids"])):  # one at a time: base models at 4,096 are large
        ids = torch.from_numpy(batch["input_ids"][row : row + 1].astype(np.int64))
        with torch.no_grad():
            logits = model(
                input_ids=ids,
                attention_mask=(ids != 0).long()
                if numbers is None
                else torch.from_numpy(numbers[row : row + 1].astype(np.int64)),
                token_type_ids=torch.from_numpy(
                    batch["segment_ids"][row : row + 1].astype(np.int64)
                ),
            )
        logits = logits[0] if not hasattr(logits, "logits") else logits.logits
        found.append(logits[0].numpy()[batch["masked_lm_positions"][row]])
    return np.stack(found)


def _our_scores(source: Source, attention: str, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Our logits at the masked places: float32 [b, P, vocabulary]."""
    import tensorflow as tf

    from bigbird_ja.evaluation.forward import inference_config
    from bigbird_ja.model import heads
    from bigbird_ja.model.encoder import encode

    config = inference_config(source.config)
    set_value(config, "model.attention_type", attention)
    params = {name: tf.constant(value) for name, value in source.params.items()}

    @tf.function
    def run(ids: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        hidden = encode(params, config, ids, segments, positions=positions)
        return heads.masked_lm_logits(params, config, hidden)

    names = ("input_ids", "segment_ids", "masked_lm_positions")
    rows = range(len(batch["input_ids"]))
    return np.concatenate(
        [run(*(tf.constant(batch[name][r : r + 1], tf.int32) for name in names)) for r in rows]
    )


def _difference(
    ours: np.ndarray, theirs: np.ndarray, batch: dict[str, np.ndarray]
) -> dict[str, Any]:
    counted = batch["masked_lm_weights"] > 0
    gap = np.abs(ours - theirs)[counted]
    return {
        "largest_difference": float(gap.max()),
        "mean_difference": float(gap.mean()),
        "largest_score": float(np.abs(ours[counted]).max()),
        "predictions": int(counted.sum()),
        "agrees": bool(gap.max() <= TOLERANCE),
    }


def _losses(
    source: Source, theirs: Any, batch: dict[str, np.ndarray], sparse: bool
) -> dict[str, float]:
    """Mean masked-LM loss (nats) of each way to run the same weights on the same records."""
    found = {
        "ours": _loss(_our_scores(source, source.config.model.attention_type, batch), batch),
        "hugging_face_original_full": _loss(_their_scores(theirs("full"), batch), batch),
    }
    if sparse:
        found["hugging_face_block_sparse"] = _loss(_their_scores(theirs("sparse"), batch), batch)
    return found


def _loss(scores: np.ndarray, batch: dict[str, np.ndarray]) -> float:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    ids = batch["masked_lm_ids"].astype(np.int64)[..., None]
    losses = -np.take_along_axis(logs, ids, axis=-1)[..., 0]
    weights = batch["masked_lm_weights"]
    return float((losses * weights).sum() / weights.sum())


def as_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = ["# Parity report", ""]
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    lines.append(f"Checkpoint of step {report['step']:,}. Compared with: {versions or 'nothing'}.")
    if "tokenizer" in report:
        found = report["tokenizer"]
        lines += [
            "",
            f"- Token ids ({found['class']}): identical in {found['identical_texts']} of"
            f" {found['texts']} texts, {found['tokens']:,} tokens (generated articles and hard"
            " cases).",
        ]
    if "original_full" in report:
        lines += _model_lines(report)
    if "not_compared" in report:
        lines += ["", f"Not compared: {report['not_compared']}."]
    return "\n".join(lines) + "\n"


def _model_lines(report: dict[str, Any]) -> list[str]:
    where = f"{report['sequences']} sequences of {report['sequence_length']:,} ({report['text']})"
    lines = [f"- Scores in `original_full` on {where}: {_gap(report['original_full'])}."]
    sparse = report["block_sparse"]
    if sparse["compared"]:
        lines.append(f"- Scores in `block_sparse`, the same random plan: {_gap(sparse)}.")
    else:
        lines.append(
            f"- Scores in `block_sparse` over the same plan: not compared: {sparse['why']}."
        )
    lines.append(
        f"- Scores of the folder's own code (`trust_remote_code`): {_gap(report['own_code'])}."
    )
    losses = report["masked_lm_loss"]
    lines.append(
        "- Masked-LM loss on the same records: "
        + ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in losses.items())
        + " nats."
    )
    return lines


def _gap(found: dict[str, Any]) -> str:
    verdict = "agrees" if found["agrees"] else "DOES NOT AGREE"
    return (
        f"{verdict}, largest difference {found['largest_difference']:.2g} of scores up to"
        f" {found['largest_score']:.3g}"
    )
