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

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.common_flags import define_model_flags
from bigbird_ja.process.console import waiting
from bigbird_ja.process.errors import BadInput, CommandError
from bigbird_ja.process.extras import require
from bigbird_ja.storage import decode, export_folder, hub
from bigbird_ja.storage.ownership import Owned

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.evaluation import TrainedModel

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
    _check_card(args)
    if args.format == "huggingface":
        require("safetensors", "transformers")
    if args.push_to_hub:
        _check_push(args)
    export_folder.check(
        args.output_dir, {"--model_dir": args.model_dir, "--data_dir": args.data_dir}
    )
    from bigbird_ja.evaluation import load_run
    from bigbird_ja.export import fill_huggingface, fill_saved_model, model_card, parity

    model = load_run(args.model_dir, args.step)
    manifest = _training_data(model, args.data_dir) if args.data_dir else None
    record = _record(args, model, manifest)

    def fill(local: str) -> None:
        if args.format == "saved_model":
            fill_saved_model(local, model)
            return
        fill_huggingface(
            local,
            model,
            model_card.Options(
                args.model_name, args.license, args.data_dir, manifest, args.language
            ),
        )

    if export_folder.finished(args.output_dir, record, args.overwrite):
        print(f"finished before: {args.output_dir} holds this export of step {model.meta.step:,}")
    else:
        with waiting("exporting: a minute, of which most is the comparison with transformers"):
            export_folder.write(args.output_dir, record, fill)
        print(f"step {model.meta.step:,} exported to {args.output_dir}")
    result = {"step": model.meta.step, "format": args.format, "output_dir": args.output_dir}
    if args.format == "huggingface":
        path = storage.join(args.output_dir, "parity_report.json")
        result["parity"] = report = decode.read_json(path, dict[str, Any])
        print(parity.as_text(report))
        if problem := parity.disagreement(report):
            raise CommandError(
                f"{args.output_dir}: {problem}: the folder is kept, and its card says so; do not"
                " publish it, and report this with its parity_report.json",
                result,
            )
    return {**result, **_push(args)}


def _check_card(args: Args) -> None:
    """Refuse what the Hub would, and settle the title."""
    known = hub.licenses()
    if args.license is not None and args.license not in known:
        near = difflib.get_close_matches(args.license, known, 1) or ["other"]
        raise BadInput(
            f"--license {args.license}: not an identifier of the Hub; use {near[0]}, or another of"
            " https://huggingface.co/docs/hub/repositories-licenses"
        )
    for code in (args.language or "ja").split(","):
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]+)*", code):
            raise BadInput(f"--language {args.language}: use language codes, such as ja, or ja,en")
    if args.model_name is None:
        args["model_name"].value = storage.base_name(args.output_dir.rstrip("/"))


def _check_push(args: Args) -> None:
    if args.license in (None, "other"):
        raise BadInput(f"--push_to_hub {args.push_to_hub}: state the weights' license by --license")
    if storage.is_remote(args.output_dir):
        raise BadInput(f"--push_to_hub reads files on disk: --output_dir {args.output_dir} is not")
    hub.check_push(args.push_to_hub)


def _push(args: Args) -> dict[str, str]:
    """Put what the export made, as it is now, on the Hub."""
    if not args.push_to_hub or (owned := Owned.load(args.output_dir)) is None:
        return {}
    with waiting(f"uploading to {args.push_to_hub}"):
        url = hub.push(owned.path, sorted(owned.files), args.push_to_hub)
    print(f"uploaded to {args.push_to_hub}: {url}")
    return {"pushed": url}


def _training_data(model: TrainedModel, data_dir: str) -> Manifest:
    """Load the data set that the model was trained on: for card and comparison.

    Raises:
        BadInput: it is another data set.
    """
    from bigbird_ja.data import manifest as manifest_lib

    manifest, meta = manifest_lib.load(data_dir), model.meta
    if manifest.fingerprint != meta.data_fingerprint:
        raise BadInput(
            f"--data_dir {data_dir} (fingerprint {manifest.fingerprint[:12]}) is not the data set"
            f" that {model.folder} was trained on ({meta.data_fingerprint[:12]}): give that one,"
            " or leave --data_dir out"
        )
    return manifest


def _record(args: Args, model: TrainedModel, manifest: Manifest | None) -> dict[str, Any]:
    """Return what the export depends on."""
    from bigbird_ja import __version__

    names = ("format", "model_name", "license", "language")
    return {
        "format_version": decode.FORMAT_VERSION,
        "bigbird_ja": __version__,
        "step": model.meta.step,
        "checkpoint": {name: file.crc32c for name, file in model.meta.files.items()},
        # Not the folder's name: this record is published with the model.
        "held_out_data": manifest.fingerprint if manifest else None,
        **{name: getattr(args, name) for name in names},
    }
