"""What a finished data set says of itself: the counts of its blocks and shards, added up."""

from __future__ import annotations

from collections.abc import Sequence

from bigbird_ja import __version__
from bigbird_ja.data import order, shards
from bigbird_ja.data.manifest import Manifest, Split
from bigbird_ja.data.settings import DataSettings


def manifest_of(
    settings: DataSettings,
    sources: Sequence[str],
    plans: Sequence[shards.SplitPlan],
    made: Sequence[Sequence[shards.MadeShard]],
) -> Manifest:
    """The manifest of finished shards, from the counts of their blocks."""
    splits = [_split_of(plan, m, settings) for plan, m in zip(plans, made, strict=True)]
    stats = [block.stats for plan in plans for block in plan.blocks]
    shard_lists = [tuple(m.shard for m in each) for each in made]
    return Manifest(
        seq_length=settings.seq_length,
        max_predictions_per_seq=settings.max_predictions_per_seq,
        masked_lm_prob=settings.masked_lm_prob,
        masking=settings.masking,
        mask_unit=settings.mask_unit,
        word_boundaries=settings.word_boundaries,
        nsp=settings.nsp,
        vocab_size=settings.vocab_size,
        special_ids=settings.specials,
        num_readers=order.choose_num_readers([shard.records for shard in shard_lists[0]]),
        train=splits[0],
        eval=splits[1],
        train_shards=shard_lists[0],
        eval_shards=shard_lists[1],
        tokenizer_sha256=settings.tokenizer_sha256,
        dupe_factor=settings.dupe_factor,
        input_mask=settings.input_mask,
        token_bytes=settings.token_bytes,
        settings=settings.as_dict(),
        statistics={
            "document_tokens": _sum([s.document_tokens for s in stats]),
            "documents_per_sequence": _sum([s.documents_per_sequence for s in stats]),
            "sequences_left_out": sum(s.left_out for s in stats),
        },
        sources=tuple(sources),
        created_by=f"bigbird-ja {__version__}",
    )


def _split_of(
    plan: shards.SplitPlan, made: Sequence[shards.MadeShard], settings: DataSettings
) -> Split:
    stats = [block.stats for block in plan.blocks]
    if settings.masking == "static":
        predictions = sum(m.predictions for m in made)
    else:
        predictions = sum(s.predictions for s in stats)
    return Split(
        documents=sum(s.documents for s in stats),
        tokens=sum(s.tokens for s in stats),
        sequences=plan.num_records,
        used_positions=sum(s.used_positions for s in stats) * plan.copies,
        predictions=predictions,
    )


def _sum(histograms: Sequence[tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*histograms, strict=True)]
