"""Hugging Face folder or SavedModel

  bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data
  bigbird-ja export --model_dir out/model --output_dir out/saved --format saved_model

Reads MODEL_DIR (checkpoint without the optimiser's state, config, tokenizer, logs). Writes
OUTPUT_DIR whole or not at all.

huggingface: config.json, model.safetensors, tokenizer.json, spiece.model, tokenizer_config.json,
special_tokens_map.json, a model card (README.md) and a parity report, which says what was compared
with transformers and how it agreed; with --data_dir on held-out records. Seconds to minutes.

saved_model: signatures `fill_mask` (also the default) and `embed`; input_ids, segment_ids and
positions in, embeddings and log_probabilities out; tokenizer.model in assets.extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

from bigbird_ja.errors import BadInput

if TYPE_CHECKING:
    from bigbird_ja.export.source import Source

EXAMPLE = "bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data"


def define_flags(values: flags.FlagValues) -> None:
    """The command's own flags."""
    flags.DEFINE_string(
        "model_dir", None, "Folder of the run, on disk or gs://.", flag_values=values
    )
    flags.DEFINE_string("output_dir", None, "Folder to make, on disk or gs://.", flag_values=values)
    flags.DEFINE_enum(
        "format", "huggingface", ["huggingface", "saved_model"], "What to make.", flag_values=values
    )
    flags.DEFINE_integer(
        "step", None, "Global step of the checkpoint; none: the newest.", flag_values=values
    )
    flags.DEFINE_integer(
        "max_position",
        None,
        "Tokens that the exported model takes: longer than trained repeats the trained position"
        " embeddings, for continued pretraining on longer text. none: as trained.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_bool("overwrite", False, "Replaces what is in OUTPUT_DIR.", flag_values=values)
    _define_card_flags(values)


def _define_card_flags(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "data_dir",
        None,
        "Data set whose held-out records the parity report compares on, and which the model card"
        " describes.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "parity_sequences",
        8,
        "Sequences that the parity report compares on; 0 compares token ids alone.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_string("model_name", "bigbird-ja", "Title of the model card.", flag_values=values)
    flags.DEFINE_string(
        "license",
        "other",
        "Licence of the weights, as on the Hugging Face hub.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "data_license", None, "Licence of the training text, for the card.", flag_values=values
    )
    flags.DEFINE_float(
        "cost_usd",
        None,
        "What training cost in USD, for the card; none: what the run's events say.",
        lower_bound=0.0,
        flag_values=values,
    )


def run(args: flags.FlagValues) -> dict[str, Any]:
    """Makes the folder, or says that it is there."""
    from bigbird_ja.console import log
    from bigbird_ja.export import folder

    for name in ("model_dir", "output_dir"):
        if not getattr(args, name):
            raise BadInput(f"--{name} is missing: see `bigbird-ja export --help`")
    folder.check(args.output_dir, {"--model_dir": args.model_dir, "--data_dir": args.data_dir})
    from bigbird_ja.export import source as source_lib

    source = source_lib.load(args.model_dir, args.step)
    if args.max_position:
        source = source_lib.extend_positions(source, args.max_position)
        if source.extended_from:
            log(
                f"position embeddings: {source.extended_from:,} trained ones repeated to"
                f" {args.max_position:,}; the copies are not trained"
            )
    record = _record(args, source)
    result = {"step": source.meta.step, "format": args.format, "output_dir": args.output_dir}
    if folder.finished(args.output_dir, record, args.overwrite):
        print(f"finished before: {args.output_dir} holds this export of step {source.meta.step:,}")
        return result
    report: dict[str, Any] = {}
    folder.write(args.output_dir, record, lambda local: report.update(_fill(local, source, args)))
    print(_summary(args, source, report))
    return {**result, "parity": report} if report else result


def _record(args: flags.FlagValues, source: Source) -> dict[str, Any]:
    """What the export depends on."""
    from bigbird_ja import __version__

    names = [
        "format", "max_position", "data_dir", "parity_sequences", "model_name", "license",
        "data_license", "cost_usd",
    ]  # fmt: skip
    return {
        "bigbird_ja": __version__,
        "step": source.meta.step,
        "checkpoint": {name: file.crc32c for name, file in source.meta.files.items()},
        **{name: getattr(args, name) for name in names},
    }


def _fill(local: str, source: Source, args: flags.FlagValues) -> dict[str, Any]:
    if args.format == "saved_model":
        from bigbird_ja.export import saved_model

        saved_model.fill(local, source)
        return {}
    from bigbird_ja.export import huggingface, model_card

    options = model_card.Options(
        name=args.model_name,
        license=args.license,
        data_license=args.data_license,
        cost_usd=args.cost_usd,
        data_dir=args.data_dir,
        parity_sequences=args.parity_sequences,
    )
    return huggingface.fill(local, source, options)


def _summary(args: flags.FlagValues, source: Source, report: dict[str, Any]) -> str:
    lines = [f"step {source.meta.step:,} exported to {args.output_dir}"]
    if report:
        from bigbird_ja.export import parity

        lines += parity.as_markdown(report).splitlines()[2:]
    return "\n".join(lines)
