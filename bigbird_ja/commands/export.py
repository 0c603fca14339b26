"""Make a Hugging Face folder or a SavedModel.

  bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data
  bigbird-ja export --model_dir out/model --output_dir out/saved --format saved_model

Reads MODEL_DIR (weights, config, tokenizer, logs). Writes OUTPUT_DIR. The last file is export.json.
A folder without this file is unfinished, and rerunning the same command completes it. With
--overwrite, an existing export moves to OUTPUT_DIR.replaced-N.

huggingface: config.json, model.safetensors, tokenizer.json, spiece.model, tokenizer_config.json,
special_tokens_map.json, the modules of sentence-transformers (those of the source, if any), a model
card (README.md) and a parity report. The report states whether transformers gives the same token
ids and, with --data_dir, the same scores. If they differ, the folder is kept, the card says so, and
the exit status is 1. A BERT, RoBERTa or XLM-R that was continued with full attention is written as
its own class. Only a BigBird with sparse attention needs code next to its weights. Takes seconds to
minutes.

saved_model: a SavedModel with two signatures. `fill_mask`, which is also the default signature,
maps input_ids, segment_ids and positions to embeddings and log_probabilities. `embed` maps
input_ids and segment_ids to embeddings. assets.extra contains tokenizer.model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_model_flags

if TYPE_CHECKING:
    from bigbird_ja.export.export_run import ExportResult

EXAMPLE = "bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    define_model_flags(flags)
    flags.path("output_dir", "Folder to make, on disk or gs://.", required=True)
    flags.choice("format", ("huggingface", "saved_model"), "Format of the export.")
    flags.switch("overwrite", "Move an existing, different export to OUTPUT_DIR.replaced-N.")
    card = "format=huggingface"
    flags.path(
        "data_dir",
        "Data set that the run was trained on: its held-out records are used for the parity report,"
        " and the model card describes it.",
        needs=card,
    )
    flags.text("model_name", "Title of the model card.", none="OUTPUT_DIR's name", needs=card)
    known = "as in the source's model card, else"
    flags.text(
        "license",
        "License of the weights: an identifier of the Hub, such as apache-2.0, or other.",
        none=f"{known} other",
        needs=card,
    )
    flags.text(
        "language",
        "Languages of the weights: codes such as ja, or ja,en.",
        none=f"{known} ja for a Japanese vocabulary",
        needs=card,
    )


def run(args: Args) -> ExportResult:
    """Export, and print the comparison with transformers."""
    from bigbird_ja.export import export_run, parity

    result = export_run.export(
        model_dir=args.model_dir,
        output_dir=args.output_dir,
        step=args.step,
        format=args.format,
        overwrite=args.overwrite,
        data_dir=args.data_dir,
        model_name=args.model_name,
        license=args.license,
        language=args.language,
    )
    print(f"step {result.step:,} exported to {result.output_dir}")
    if result.parity is not None:
        print(parity.format_report(result.parity))
    return result
