"""Make a Hugging Face folder or a SavedModel.

  bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data
  bigbird-ja export --model_dir out/model --output_dir out/saved --format saved_model

Reads MODEL_DIR (checkpoint without the optimiser's state, config, tokenizer, logs). Writes
OUTPUT_DIR, export.json last: without that file it is unfinished, and the same command completes it.
With --overwrite, a file that you changed is refused: move it away.

huggingface: config.json, model.safetensors, tokenizer.json, spiece.model, tokenizer_config.json,
special_tokens_map.json, code for transformers, a model card (README.md) and a parity report, which
says what was compared with transformers and whether it agreed; with --data_dir on held-out records.
Seconds to minutes.

saved_model: signatures `fill_mask` (also the default) and `embed`; input_ids, segment_ids and
positions in, embeddings and log_probabilities out; tokenizer.model in assets.extra.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process.console import waiting
from bigbird_ja.process.errors import BadInput, require

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.evaluation.trained_model import TrainedModel

EXAMPLE = "bigbird-ja export --model_dir out/model --output_dir out/hf --data_dir out/data"
NEEDS = ("tensorflow",)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    flags.path("output_dir", "Folder to make, on disk or gs://.", required=True)
    flags.choice("format", ("huggingface", "saved_model"), "What to make.")
    flags.integer(
        "step", None, "Global step of the checkpoint.", low=0, high=10**12, none="the newest"
    )
    flags.switch("overwrite", "Replaces the export that is in OUTPUT_DIR.")
    card = "format=huggingface"
    flags.path(
        "data_dir",
        "Data set that the run was trained on: the parity report compares on its"
        " held-out records, and the model card describes it.",
        needs=card,
    )
    flags.integer(
        "parity_sequences",
        8,
        "Sequences that the parity report compares on; 0 compares token ids alone.",
        low=0,
        high=10**6,
        needs=card,
    )
    flags.text("model_name", "Title of the model card.", default="bigbird-ja", needs=card)
    flags.text(
        "license",
        "Licence of the weights, as on the Hugging Face hub.",
        default="other",
        needs=card,
    )


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Make the folder, unless it is there."""
    from bigbird_ja.export import folder

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", args.license):
        raise BadInput(
            f"--license {args.license!r}: an identifier of the hub, such as cc-by-sa-4.0"
        )
    if args.format == "huggingface":
        require("safetensors")
    folder.check(args.output_dir, {"--model_dir": args.model_dir, "--data_dir": args.data_dir})
    from bigbird_ja.evaluation import trained_model
    from bigbird_ja.export import model_card

    model = trained_model.load_run(args.model_dir, args.step)
    manifest = _training_data(model, args.data_dir) if args.data_dir else None
    record = _record(args, model, manifest)
    result = {"step": model.step, "format": args.format, "output_dir": args.output_dir}
    if folder.finished(args.output_dir, record, args.overwrite):
        print(f"finished before: {args.output_dir} holds this export of step {model.step:,}")
        return result
    report: dict[str, Any] = {}

    def fill(local: str) -> None:
        if args.format == "saved_model":
            from bigbird_ja.export import saved_model

            saved_model.fill(local, model)
            return
        from bigbird_ja.export import huggingface

        options = model_card.Options(
            args.model_name, args.license, args.parity_sequences, args.data_dir, manifest
        )
        report.update(huggingface.fill(local, model, options))

    with waiting("exporting: a minute, of which most is the comparison with transformers"):
        folder.write(args.output_dir, record, fill, args.overwrite)
    print(f"step {model.step:,} exported to {args.output_dir}")
    if not report:
        return result
    from bigbird_ja.export import parity

    print("\n".join(parity.as_markdown(report).splitlines()[2:]))
    return {**result, "parity": report}


def _training_data(model: TrainedModel, data_dir: str) -> Manifest:
    """Load the data set that the model was trained on: for card and comparison.

    Raises:
        BadInput: it is another data set.
    """
    from bigbird_ja.data import manifest as manifest_lib

    manifest, meta = manifest_lib.load(data_dir), model.meta
    if meta and manifest.fingerprint != meta.data_fingerprint:
        raise BadInput(
            f"--data_dir {data_dir} (fingerprint {manifest.fingerprint[:12]}) is not the data set"
            f" that {model.folder} was trained on ({meta.data_fingerprint[:12]}): give that one,"
            " or leave --data_dir out"
        )
    return manifest


def _record(
    args: absl_flags.FlagValues, model: TrainedModel, manifest: Manifest | None
) -> dict[str, Any]:
    """Return what the export depends on."""
    from bigbird_ja import __version__
    from bigbird_ja.storage.decode import FORMAT_VERSION

    assert model.meta is not None
    names = ("format", "parity_sequences", "model_name", "license")
    return {
        "format_version": FORMAT_VERSION,
        "bigbird_ja": __version__,
        "step": model.step,
        "checkpoint": {name: file.crc32c for name, file in model.meta.files.items()},
        # Not the folder's name: this record is published with the model.
        "held_out_data": manifest.fingerprint if manifest else None,
        **{name: getattr(args, name) for name in names},
    }
