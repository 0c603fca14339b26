"""The generated model card, from the run's files; what they do not record is left open."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.export.source import Source
from bigbird_ja.model import pattern
from bigbird_ja.process.console import human_count, human_time
from bigbird_ja.run import log as run_log

_WIKI40B = re.compile(r"tfds:wiki40b/([a-z]{2,3}(?:-[a-z]+)?)\b")
_KANA_SHARE = 0.05  # of a vocabulary; a model of Japanese text has several times as much


@dataclass(frozen=True)
class Options:
    """What the flags state: for the card, and how much is compared."""

    name: str
    license: str = "other"
    parity_sequences: int = 8  # held-out sequences to compare on; 0 compares nothing


def text(source: Source, options: Options, report: dict[str, Any]) -> str:
    """README.md of the folder."""
    parts = [
        _front_matter(source, options),
        f"# {options.name}",
        f"A {'Japanese ' if language(source) == 'ja' else ''}BigBird encoder (block-sparse"
        " attention, Zaheer et al. 2020), pretrained from scratch with bigbird-ja"
        f" {__version__} to fill in masked tokens.",
        _usage(source),
        _training(source),
        _results(source),
        _attention(source, report),
        _limits(source, options),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def language(source: Source) -> str | None:
    """The code of the language that the model learned; None where it is unknown.

    Wiki40b's sources name it. Elsewhere kana do: no other language's vocabulary is made of them.
    """
    sources = source.manifest.sources if source.manifest else ()
    named = [_WIKI40B.match(name) for name in sources]
    codes = {match[1] if match else None for match in named}
    if len(codes) == 1 and (code := codes.pop()):
        return code
    pieces = source.tokenizer.pieces
    with_kana = sum(any("ぁ" <= character <= "ヿ" for character in piece) for piece in pieces)
    return "ja" if with_kana > _KANA_SHARE * len(pieces) else None


def _front_matter(source: Source, options: Options) -> str:
    code = language(source)
    return f"""---
{f"language: {code}" if code else "# of no known language"}
license: {options.license}
library_name: transformers
pipeline_tag: fill-mask
mask_token: '[MASK]'
tags:
- bigbird
- long-context
---"""


def _usage(source: Source) -> str:
    is_japanese = language(source) == "ja"
    masked = "日本の首都は[MASK]です。" if is_japanese else "The capital of Japan is [MASK]."
    text = "長い文章。" if is_japanese else "A long text."
    return f"""## How to use

```python
from transformers import pipeline

fill = pipeline("fill-mask", model="PATH_TO_THIS_FOLDER")
for candidate in fill("{masked}"):
    print(candidate["token_str"], round(candidate["score"], 4))
```

```python
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_TO_THIS_FOLDER")
model = AutoModel.from_pretrained("PATH_TO_THIS_FOLDER", add_pooling_layer=False)
inputs = tokenizer("{text}", return_tensors="pt")
vectors = model(**inputs).last_hidden_state
```

Texts may have up to {source.config.model.max_position_embeddings:,} tokens. Structure is written
with the markers of Wiki40b: `_START_ARTICLE_`, `_START_SECTION_`, `_START_PARAGRAPH_`,
`_NEWLINE_`."""


def _training(source: Source) -> str:
    config, meta = source.config, source.meta
    model, training = config.model, config.training
    cost = run_log.counted_usd(source.events)
    rows = [
        ("parameters", human_count(sum(value.size for value in source.params.values()))),
        (
            "architecture",
            f"{model.num_layers} layers, hidden {model.hidden_size},"
            f" {model.num_attention_heads} heads, MLP {model.intermediate_size}",
        ),
        (
            "attention",
            f"{model.attention_type}, blocks of {model.block_size}, {model.num_random_blocks}"
            f" random blocks (`{model.random_pattern}`, seed {model.pattern_seed})",
        ),
        ("vocabulary", f"{model.vocab_size:,} SentencePiece pieces"),
        ("sequence length in training", f"{config.make_data.seq_length:,} tokens"),
        ("optimiser steps", f"{meta.step:,} of {training.num_train_steps:,}"),
        ("sequences per step", f"{training.global_batch_size}"),
        ("tokens seen", human_count(meta.tokens_seen)),
        (
            "optimiser",
            f"AdamW, peak learning rate {training.learning_rate:g},"
            f" {training.warmup_steps:,} warm-up steps, {training.schedule}",
        ),
        ("masking", f"{config.make_data.masking}, {config.data.mask_unit}"),
        ("next-sentence task", "yes" if config.make_data.nsp else "no"),
        ("training time", human_time(meta.train_seconds)),
        ("interruptions survived", str(meta.interruptions)),
        ("cost", "not recorded" if cost is None else f"{cost:,.2f} USD"),
        ("data", _data(source)),
        ("data fingerprint", f"`{meta.data_fingerprint[:16]}`"),
        ("config fingerprint", f"`{meta.config_fingerprint[:16]}`"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"## Training\n\n| | |\n|---|---|\n{table}"


def _data(source: Source) -> str:
    names = "Japanese text" if language(source) == "ja" else "text"
    if manifest := source.manifest:
        mixed = [
            f"{row['name']} ({row['weight']:g} times per epoch, {row['share']:.1%} of the tokens)"
            for row in manifest.portions()
        ]
        used = ", ".join(mixed or manifest.source_names) or names
        names = f"{used}: {manifest.documents:,} documents, {human_count(manifest.tokens)} tokens"
    return names


def _results(source: Source) -> str:
    rows = []
    if source.metrics:
        loss = _number(source.metrics.get("loss"), ".4f")
        rows.append(f"- training loss at step {source.metrics['step']:,}: {loss}")
    if result := source.evaluation:
        rows += [
            f"- masked-LM loss on held-out text: {_number(result['masked_lm_loss'], '.4f')} nats"
            f" (perplexity {_number(result.get('perplexity'), '.2f')})",
            "- masked-LM accuracy on held-out text:"
            f" {_number(result['masked_lm_accuracy'], '.2%')}",
        ]
        if bits := result.get("bits_per_character"):
            rows.append(f"- bits per masked character: {bits:.3f}")
        rows += [
            f"- masked-LM loss on held-out text of {row['name']}:"
            f" {_number(row['loss'], '.4f')} nats"
            for row in result.get("by_sub_corpus", [])
        ]
    else:
        rows.append("- not evaluated on held-out text (`bigbird-ja evaluate` does)")
    return "## Results\n\n" + "\n".join(rows)


def _number(value: float | None, form: str) -> str:
    return "not a number" if value is None else format(value, form)


def _attention(source: Source, report: dict[str, Any]) -> str:
    if source.config.model.attention_type == "original_full":
        return ""
    lines = [
        "## Random blocks in transformers",
        "transformers' BigBird does not read a random plan from a checkpoint: it draws its own in"
        " training, and sees block 0 only outside training. This model was trained with the"
        f" `{source.config.model.random_pattern}` pattern of bigbird-ja. Load it with"
        " `trust_remote_code=True`: the code beside the weights (`modeling_bigbird_ja.py`,"
        " PyTorch) follows that plan, in fine-tuning too. Its `attention_mask` may number the"
        " documents of a packed sequence. Texts of up to"
        f" {pattern.shortest_sparse(source.config.model) - 1:,} tokens get full attention and are"
        " the same either way.",
    ]
    if losses := report.get("masked_lm_loss"):
        lines.append(
            f"Measured on {report['sequences']} {report['text']} of"
            f" {report['sequence_length']:,} tokens: masked-LM loss {losses['exported']:.4f} with"
            f" that code, {losses['bigbird_ja']:.4f} in training's."
        )
    else:
        why = report.get("not_compared", "not measured")
        lines.append(f"That code was not compared with training's ({why}).")
    lines.append("`parity_report.md` lists what was compared.")
    return "\n\n".join(lines)


def _limits(source: Source, options: Options) -> str:
    lines = [
        "- It predicts what its training text makes likely, true or not, with that text's biases.",
        "- It fills in masks and gives vectors; for a task of your own it needs fine-tuning.",
        "- Spaces are pieces of their own (`▁`); Japanese text without them starts with one.",
    ]
    if source.meta.step < source.config.training.num_train_steps:
        lines.append("- Training was not finished at this checkpoint.")
    if source.extended_from:
        lines.append(
            f"- Position embeddings beyond {source.extended_from:,} are copies of the trained ones"
            f" (extended to {source.config.model.max_position_embeddings:,}) and were not trained:"
            " continue pretraining on long text before relying on them."
        )
    if options.license == "other":
        lines.append("- No licence was stated when it was exported.")
    return "## Limits\n\n" + "\n".join(lines)
