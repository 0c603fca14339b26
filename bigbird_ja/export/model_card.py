"""Model card of an export, from the run's files.

The card contains only facts that these files record.
"""

import html
import importlib.resources
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bigbird_ja import __version__, storage
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.export import parity, sentence_transformers
from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.huggingface import hub
from bigbird_ja.model import pattern
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.model import TrainedModel
from bigbird_ja.process.console import escape_text, format_count, format_time
from bigbird_ja.settings.schema import Model
from bigbird_ja.settings.values import get_mask_rates
from bigbird_ja.storage.paths import NAMED
from bigbird_ja.text.markers import MARKERS, MASK
from bigbird_ja.text.tokenizer import SentencePieceTokenizer

# Maximum number of files that a card lists for a folder.
_MAX_FILES = 3
# Usual maximum length of encoders before BigBird, in tokens.
_SHORT = 512

_EXAMPLES = {
    "ja": ("日本の首都は[MASK]です。", "長い文章。"),
    "en": ("The capital of Japan is [MASK].", "A long text."),
}

_STRUCTURE = f" Structure is written with the markers of Wiki40b: `{'`, `'.join(MARKERS)}`."


@dataclass(frozen=True)
class Options:
    """Parameters of `export` for the model card and the comparison.

    Attributes:
        license: license identifier of the Hub, or None for the license of the model that the run
            started from.
        data_dir: data set that the model was trained on, or None.
        manifest: manifest of `data_dir`, or None.
        language: language codes, joined by commas, or None.
    """

    name: str
    license: str | None = None
    data_dir: str | None = None
    manifest: Manifest | None = None
    language: str | None = None


def format_card(model: TrainedModel, options: Options, report: Mapping[str, Any]) -> str:
    """Format the model card (README.md) of an exported folder.

    Args:
        model: trained model of a run.
        options: parameters of `export`.
        report: result of `parity.compare`.
    """
    config, meta = model.config, model.meta
    events = run_log.read_events(model.folder)
    cost = run_log.find_cost_usd(events)
    finished = [number for number, e in enumerate(events, 1) if e["event"] == "finished"]
    known = run_log.count_unfinished_starts(events[: finished[-1] if finished else 0])
    metrics = [m for m in run_log.read_metrics(model.folder) if m["step"] <= meta.step]
    evaluations = [e for e in run_log.read_evaluations(model.folder) if e["step"] == meta.step]
    source = run_log.find_origin(events)
    stated = run_log.find_origin_folder(source)
    codes = choose_languages(model, options, stated)
    code = codes[0] if len(codes) == 1 else ""
    masked_text, long_text = _EXAMPLES.get(code, _EXAMPLES["en"])
    source_license = stated.get("license")
    license = options.license or (source_license if isinstance(source_license, str) else "other")
    model_type = stated.get("config", {}).get("model_type")
    stock = hf_config.find_stock_class(model_type, config.model, model.data.nsp)
    shape = _describe_model(config.model) if stock is None else _describe_stock(model_type, stock)
    origin, base_model = _describe_origin(source)
    long = ["long-context"] if (config.model.max_position_embeddings or 0) > _SHORT else []
    mask = model.tokenizer.written[model.tokenizer.special.mask]
    ours = isinstance(model.tokenizer, SentencePieceTokenizer)
    whose = "SentencePiece tokens" if ours else "tokens of another model's tokenizer"
    rate = model.data.masked_lm_prob
    first, last, _ = get_mask_rates(config) or (rate, rate, 0)
    share = f"{first:.0%}" if first == last else f"{first:.0%} at first, {last:.0%} at last"
    measured = format_results(
        metrics[-1] if metrics else None, evaluations[-1] if evaluations else None
    )
    header = {
        "language": codes[0] if len(codes) == 1 else codes,
        "license": license,
        "base_model": base_model,
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "mask_token": mask,
        "tags": [*dict.fromkeys([shape.pop("tag"), *long, *_list_texts(stated.get("tags"))])],
    }
    card = _read_template("model_card.md").format(
        name=_escape(options.name),
        front=yaml.safe_dump(
            {key: value for key, value in header.items() if value},
            allow_unicode=True,
            sort_keys=False,
        ),
        meta=meta,
        model=config.model,
        training=config.training,
        optimizer="Muon and AdamW" if config.training.optimizer == "muon" else "AdamW",
        make_data=model.data,
        version=__version__,
        adjective="Japanese " if code == "ja" else "",
        masked_text=json.dumps(masked_text.replace(MASK, mask), ensure_ascii=False),
        long_text=long_text,
        parameters=format_count(sum(value.size for value in model.params.values())),
        tokens_seen=format_count(meta.tokens_seen),
        next_sentence="yes" if model.data.nsp else "no",
        training_time=format_time(meta.train_seconds),
        interruptions=max(meta.interruptions, known),
        cost="not recorded" if cost is None else f"{cost:,.2f} USD",
        data_names=_describe_data(options.manifest, code),
        results="\n".join(f"- {row}" for row in measured),
        attention=(attention := _format_attention(model, report)),
        trust=", trust_remote_code=True" if attention else "",
        structure=_STRUCTURE if set(MARKERS).issubset(model.tokenizer.tokens) else "",
        tokens=f"{model.tokenizer.vocab_size:,} {whose}",
        masking=f"{share} of the tokens, {model.data.masking}, {config.data.mask_unit}",
        **shape,
        **origin,
        more_limits=_format_limits(model, license, source, report),
    )
    return card.rstrip() + "\n"


def _list_texts(value: Any) -> list[str]:
    """Return the texts in an entry of a model card's header. The entry may be a text or a list."""
    values = value if isinstance(value, list) else [value]
    return [escape_text(text) for text in values if isinstance(text, str)]


def _format_limits(
    model: TrainedModel, license: str, source: Mapping[str, Any] | None, report: Mapping[str, Any]
) -> str:
    """Format the limitations that apply to this model."""
    limits = []
    if model.meta.step < model.config.training.num_train_steps:
        limits.append("Training was not finished at this checkpoint.")
    if problem := parity.describe_disagreement(report):
        limits.append(f"**Do not use it as it is**: {problem}.")
    elif not (ids := report.get("tokenizer", {"agrees": True}))["agrees"]:
        limits.append(
            f"`{ids['class']}` gives other token ids than training's tokenizer in"
            f" {ids['texts'] - ids['identical_texts']} of {ids['texts']} texts, all of them"
            " unusual."
        )
    if license == "other":
        limits.append("No license was stated when it was exported.")
    if source:
        limits.append(
            "Its initial weights are from another model. That model's license applies, too, and"
            " must permit the license stated here."
        )
        left_out = set(run_log.find_origin_folder(source).get("modules", ())) - set(
            sentence_transformers.MODULES
        )
        if left_out:
            limits.append(f"sentence-transformers' {_escape(', '.join(left_out))} is left out.")
    while source:
        limits += [
            f"Initial weights: {_escape(note)}. Positions beyond the source's length were learned"
            " only in this training."
            for note in source.get("adapted", ())
            if note.endswith(" repeated")
        ]
        if any(name.startswith("cls/predictions/transform") for name in source.get("random", ())):
            limits.append("The source had no masked-LM head: it was trained from random weights.")
        source = source.get("init_from")
    return "".join(f"- {limit}\n" for limit in limits)


def _describe_origin(record: Mapping[str, Any] | None) -> tuple[dict[str, str], str | None]:
    """Describe the source of the initial weights, and find the base model.

    If the source is a run, the run's own source is described, too. Only the last part of a path is
    published.

    Args:
        record: record of `init_from` in the run's log, or None for random initial weights.

    Returns:
        Texts for the placeholders in the card's template, and the name of the base model on the
        Hub, or None if no name is known.
    """
    base_model, names, weights = None, [], []
    while record:
        source = str(record["source"]).rstrip("/")
        on_hub, commit = hub.parse_cached_path(source)
        name = on_hub or record.get("folder", {}).get("name") or source.rpartition("/")[2]
        if record["kind"].startswith("a Hugging Face folder") and hub.NAME.fullmatch(name):
            base_model = name
        at = f", commit {commit}" if commit else ""
        names.append(f"{_escape(name)} ({record['kind']}{_escape(at)})")
        weights += [f"{_escape(file)} `{digest}`" for file, digest in record["weights"].items()]
        record = record.get("init_from")
    if not names:
        return {"beginning": "pretrained from scratch", "initial_weights": "random"}, None
    chain = ", itself from ".join(names)
    initial_weights = f"{chain}: {', '.join(weights)}"
    return {"beginning": f"trained on from {chain}", "initial_weights": initial_weights}, base_model


def _describe_stock(model_type: str, stock: str) -> dict[str, str]:
    """Describe a BERT or RoBERTa encoder, for the placeholders in the card's template."""
    names = {"bert": "BERT", "roberta": "RoBERTa", "xlm-roberta": "XLM-RoBERTa"}
    encoder = f"{names[model_type]} encoder (transformers' `{stock}`)"
    return {"tag": model_type, "encoder": encoder, "attends": "all tokens"}


def _describe_model(model: Model) -> dict[str, str]:
    """Describe a BigBird or ModernBERT encoder, for the placeholders in the card's template."""
    if model.architecture == "modernbert":
        every = model.global_attn_every_n_layers
        return {
            "tag": "modernbert",
            "encoder": "ModernBERT encoder (Warner et al. 2024)",
            "attends": f"all tokens in one layer of {every}, else {model.local_attention} nearby",
        }
    attends = "all tokens"
    if pattern.is_sparse(model):
        attends = (
            f"{model.attention_type}, blocks of {model.block_size}, {model.num_random_blocks}"
            f" random blocks (`{model.random_pattern}`, seed {model.pattern_seed})"
        )
    encoder = "BigBird encoder (block-sparse attention, Zaheer et al. 2020)"
    return {"tag": "bigbird", "encoder": encoder, "attends": attends}


def choose_languages(model: TrainedModel, options: Options, stated: Mapping[str, Any]) -> list[str]:
    """Return the language codes that the user states, or else those in the source's description.

    The source is the model that the run started from, described by `stated`. If neither states a
    code, the result is ["ja"] for a Japanese vocabulary, else [].
    """
    if codes := _list_texts(
        options.language.split(",") if options.language else stated.get("language")
    ):
        return codes
    return ["ja"] if model.tokenizer.is_japanese else []


def _describe_data(manifest: Manifest | None, code: str) -> str:
    """Describe the training data. Many files of one folder are summarized."""
    kind = "Japanese text" if code == "ja" else "text"
    if manifest is None:
        return kind
    folders: dict[str, list[str]] = defaultdict(list)
    for source, name in zip(manifest.sources, manifest.source_names, strict=True):
        place = source if source.startswith(NAMED) else storage.get_directory(source)
        folders[place].append(_escape(name))
    names: list[str] = []
    for files in folders.values():
        folder = f"a folder of {len(files):,} files ({files[0]}, ...)"
        names += [folder] if len(files) > _MAX_FILES else files
    stated = ", ".join(names) or kind
    return f"{stated}: {manifest.documents:,} documents, {format_count(manifest.tokens)} tokens"


def _escape(text: str) -> str:
    """Return a text as one line, escaped so that Markdown shows its HTML, links and `|` as text."""
    return re.sub(r"([\\`*|\[\]])", r"\\\1", html.escape(escape_text(text), quote=False))


def format_results(
    metrics: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None
) -> list[str]:
    """Format the measured results, one line for each.

    Args:
        metrics: last logged step up to the checkpoint, a line of metrics.jsonl.
        evaluation: newest evaluation of the checkpoint, a line of eval.jsonl.
    """

    def format_number(value: float | None, form: str) -> str:
        return "not a number" if value is None else format(value, form)

    rows = []
    if metrics:
        loss = format_number(metrics.get("loss"), ".4f")
        rows.append(f"training loss at step {metrics['step']:,}: {loss}")
    if evaluation is None:
        return [*rows, "not evaluated on held-out text (`bigbird-ja evaluate` does)"]
    loss, accuracy = evaluation["masked_lm_loss"], evaluation["masked_lm_accuracy"]
    rows += [
        f"masked-LM loss on held-out text: {format_number(loss, '.4f')} nats"
        f" (perplexity {format_number(evaluation.get('perplexity'), '.2f')})",
        f"masked-LM accuracy on held-out text: {format_number(accuracy, '.2%')}",
    ]
    if bits := evaluation.get("bits_per_character"):
        rows.append(f"bits per masked character: {bits:.3f}")
    return rows


def _format_attention(model: TrainedModel, report: Mapping[str, Any]) -> str:
    """Format the section about random blocks, or "" for a model with full attention."""
    settings = model.config.model
    if not pattern.is_sparse(settings) or pattern.is_full_throughout(settings):
        return ""
    if losses := report.get("masked_lm_loss"):
        measured = (
            f"Measured on {report['sequences']} held-out records of"
            f" {report['sequence_length']:,} tokens: masked-LM loss {losses['exported']:.4f} with"
            f" that code, {losses['bigbird_ja']:.4f} in training's."
        )
    else:
        why = report.get("not_compared", "not measured")
        measured = f"That code was not compared with training's ({why})."
    return _read_template("random_blocks.md").format(
        random_pattern=settings.random_pattern,
        full=pattern.find_shortest_sparse(settings) - 1,
        measured=measured,
    )


def _read_template(name: str) -> str:
    return importlib.resources.files("bigbird_ja.export").joinpath(name).read_text("utf-8")
