"""Hugging Face folder or SavedModel

  bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data
  bigbird-ja export --model_dir out/model --output_dir out/saved --format saved_model

Reads MODEL_DIR (checkpoint without the optimiser's state, config, tokenizer, logs). Writes
OUTPUT_DIR whole or not at all.

huggingface: config.json, model.safetensors, tokenizer.json, spiece.model, tokenizer_config.json,
special_tokens_map.json, code for transformers, a model card (README.md) and a parity report, which
says what was compared with transformers and whether it agreed; with --data_dir on held-out records.
Seconds to minutes.

saved_model: signatures `fill_mask` (also the default) and `embed`; input_ids, segment_ids and
positions in, embeddings and log_probabilities out; tokenizer.model in assets.extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags

if TYPE_CHECKING:
    from bigbird_ja.export.source import Source

EXAMPLE = "bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data"


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    flags.path("output_dir", "Folder to make, on disk or gs://.", required=True)
    flags.choice("format", ("huggingface", "saved_model"), "What to make.")
    flags.integer(
        "step", None, "Global step of the checkpoint.", low=0, high=10**12, none="the newest"
    )
    flags.integer(
        "max_position", None,
        "Tokens that the exported model takes: longer than trained repeats the trained position"
        " embeddings, for continued pretraining on longer text.",
        unit="tokens", low=1, high=10_000_000, none="as trained",
    )  # fmt: skip
    flags.switch("overwrite", "Replaces what is in OUTPUT_DIR.")
    _define_card_flags(flags)


def _define_card_flags(flags: Flags) -> None:
    card = "format=huggingface"
    flags.path(
        "data_dir", "Data set that the run was trained on: the parity report compares on its"
        " held-out records, and the model card describes it.", needs=card,
    )  # fmt: skip
    flags.integer(
        "parity_sequences", 8,
        "Sequences that the parity report compares on; 0 compares token ids alone.",
        low=0, high=10**6, needs=card,
    )  # fmt: skip
    flags.text("model_name", "Title of the model card.", default="bigbird-ja", needs=card)
    flags.text(
        "license", "Licence of the weights, as on the Hugging Face hub.", default="other",
        needs=card,
    )  # fmt: skip


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Makes the folder, unless it is there."""
    from bigbird_ja.export import folder
    from bigbird_ja.process.console import log

    folder.check(args.output_dir, {"--model_dir": args.model_dir, "--data_dir": args.data_dir})
    from bigbird_ja.export import source as source_lib

    source = source_lib.load(args.model_dir, args.step)
    if args.data_dir:
        source = source_lib.with_data_set(source, args.data_dir)
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
    folder.write(
        args.output_dir,
        record,
        lambda local: report.update(_fill(local, source, args)),
        args.overwrite,
    )
    print(_summary(args, source, report))
    return {**result, "parity": report} if report else result


def _record(args: absl_flags.FlagValues, source: Source) -> dict[str, Any]:
    """What the export depends on."""
    from bigbird_ja import __version__
    from bigbird_ja.storage.decode import FORMAT_VERSION

    names = ("format", "max_position", "parity_sequences", "model_name", "license")
    return {
        "format_version": FORMAT_VERSION,
        "bigbird_ja": __version__,
        "step": source.meta.step,
        "checkpoint": {name: file.crc32c for name, file in source.meta.files.items()},
        # Not the folder's name: this record is published with the model.
        "held_out_data": source.manifest.fingerprint if source.manifest else None,
        **{name: getattr(args, name) for name in names},
    }


def _fill(local: str, source: Source, args: absl_flags.FlagValues) -> dict[str, Any]:
    if args.format == "saved_model":
        from bigbird_ja.export import saved_model

        saved_model.fill(local, source)
        return {}
    from bigbird_ja.export import huggingface, model_card

    options = model_card.Options(args.model_name, args.license, args.parity_sequences)
    return huggingface.fill(local, source, options)


def _summary(args: absl_flags.FlagValues, source: Source, report: dict[str, Any]) -> str:
    lines = [f"step {source.meta.step:,} exported to {args.output_dir}"]
    if report:
        from bigbird_ja.export import parity

        lines += parity.as_markdown(report).splitlines()[2:]
    return "\n".join(lines)
