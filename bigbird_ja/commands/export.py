"""Make a Hugging Face folder or a SavedModel.

  bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data
  bigbird-ja export --model_dir out/model --output_dir out/saved --format saved_model

Reads MODEL_DIR (checkpoint without the optimiser's state, config, tokenizer, logs). Writes
OUTPUT_DIR, export.json last: without that file it is unfinished, and the same command completes it.
With --overwrite, the export that is there moves to OUTPUT_DIR.replaced-N.

huggingface: config.json, model.safetensors, tokenizer.json, spiece.model, tokenizer_config.json,
special_tokens_map.json, sentence-transformers' modules (the source's, if it had any), a model card
(README.md) and a parity report, which says whether transformers gives the same token ids and, with
--data_dir, the same scores. If not, the folder is kept, the card says so, and the status is 1.
A BERT, RoBERTa or XLM-R that was continued with full attention is written as its own class; only a
BigBird with sparse attention needs code beside its weights. Seconds to minutes.

saved_model: signatures `fill_mask` (also the default) and `embed`; input_ids, segment_ids and
positions in, embeddings and log_probabilities out; tokenizer.model in assets.extra.
"""

import dataclasses
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_model_flags

EXAMPLE = "bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    define_model_flags(flags)
    flags.path("output_dir", "Folder to make, on disk or gs://.", required=True)
    flags.choice("format", ("huggingface", "saved_model"), "What to make.")
    flags.switch("overwrite", "Moves another export aside (OUTPUT_DIR.replaced-N), makes this one.")
    card = "format=huggingface"
    flags.path(
        "data_dir",
        "Data set that the run was trained on: the parity report compares on its"
        " held-out records, and the model card describes it.",
        needs=card,
    )
    flags.text("model_name", "Title of the model card.", none="OUTPUT_DIR's name", needs=card)
    known = "the source's by its card, else"
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
    flags.text(
        "push_to_hub",
        "Repository (NAME/REPO) of the Hugging Face Hub that the finished folder is put into; a new"
        " one is private. Needs --license and a token (`hf auth login`).",
        none="stays here",
        needs=card,
    )


def run(args: Args) -> dict[str, Any]:
    """Make the folder, unless it is there."""
    from bigbird_ja.export import export_run

    names = (field.name for field in dataclasses.fields(export_run.Request))
    return export_run.run(export_run.Request(**{name: getattr(args, name) for name in names}))
