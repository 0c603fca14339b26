"""Export of one checkpoint of a run: the request, its checks, the folder, the upload."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bigbird_ja import __version__, storage
from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.export import publish
from bigbird_ja.process.console import waiting
from bigbird_ja.process.extras import require
from bigbird_ja.storage import decode, export_folder

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.model_dir.model import TrainedModel


@dataclass(frozen=True, kw_only=True)
class Request:
    """An export to be made.

    Attributes:
        model_dir: folder of the run.
        step: global step of the checkpoint; None for the newest.
        output_dir: folder to make, on disk or gs://.
        format: "huggingface" or "saved_model".
        overwrite: whether another export in `output_dir` is set aside.
        data_dir: data set that the run was trained on, for the card and the comparison.
        model_name: title of the model card; None for the name of `output_dir`.
        license: identifier of the Hub; None for the source's.
        language: language codes, joined by commas; None for the source's, or by the vocabulary.
        push_to_hub: repository, NAME/REPO; None for no upload.
    """

    model_dir: str
    step: int | None
    output_dir: str
    format: str
    overwrite: bool
    data_dir: str | None
    model_name: str | None
    license: str | None
    language: str | None
    push_to_hub: str | None

    @property
    def name(self) -> str:
        """Title of the model card."""
        return self.model_name or storage.base_name(self.output_dir.rstrip("/"))

    def check(self) -> None:
        """Refuse, before any work, what cannot succeed.

        Raises:
            BadInput: a package is missing, or a flag's value is refused.
        """
        publish.check_card(self.license, self.language)
        if self.format == "huggingface":
            require("safetensors", "transformers")
        if self.push_to_hub:
            publish.check_push(self.push_to_hub, self.license, self.output_dir)
        inputs = {"--model_dir": self.model_dir, "--data_dir": self.data_dir}
        export_folder.check(self.output_dir, inputs)


def run(request: Request) -> dict[str, Any]:
    """Make the folder, unless it is there, and return the `--json` results.

    Raises:
        CommandError: the exported model computes something else; the folder is kept.
    """
    request.check()
    from bigbird_ja.export import parity
    from bigbird_ja.model_dir.model import load_run  # imports TensorFlow

    model, output_dir = load_run(request.model_dir, request.step), request.output_dir
    manifest = _training_data(model, request.data_dir) if request.data_dir else None
    record = _record(request, model, manifest)
    if export_folder.finished(output_dir, record, request.overwrite):
        print(f"finished before: {output_dir} holds this export of step {model.meta.step:,}")
    else:
        with waiting("exporting: a minute, of which most is the comparison with transformers"):
            fill = partial(_fill, request=request, model=model, manifest=manifest)
            export_folder.write(output_dir, record, fill, request.overwrite)
        print(f"step {model.meta.step:,} exported to {output_dir}")
    result = {"step": model.meta.step, "format": request.format, "output_dir": output_dir}
    if request.format == "huggingface":
        path = storage.join(output_dir, "parity_report.json")
        result["parity"] = report = decode.read_json(path, dict[str, Any])
        print(parity.as_text(report))
        if problem := parity.disagreement(report):
            raise CommandError(
                f"{output_dir}: {problem}: the folder is kept, and its card says so; do not"
                " publish it, and report this with its parity_report.json",
                result,
            )
    return result | (publish.push(request.push_to_hub, output_dir) if request.push_to_hub else {})


def _fill(local: str, request: Request, model: TrainedModel, manifest: Manifest | None) -> None:
    """Write the export's files into an empty local directory."""
    if request.format == "saved_model":
        from bigbird_ja.export.saved_model import fill_saved_model

        fill_saved_model(local, model)
        return
    from bigbird_ja.export.folder import fill_huggingface
    from bigbird_ja.export.model_card import Options

    options = Options(request.name, request.license, request.data_dir, manifest, request.language)
    fill_huggingface(local, model, options)


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


def _record(request: Request, model: TrainedModel, manifest: Manifest | None) -> dict[str, Any]:
    """Return the inputs that determine the export."""
    return {
        "format_version": decode.FORMAT_VERSION,
        "bigbird_ja": __version__,
        "step": model.meta.step,
        "checkpoint": {name: file.crc32c for name, file in model.meta.files.items()},
        # Not the folder's name: this record is published with the model.
        "held_out_data": manifest.fingerprint if manifest else None,
        "format": request.format,
        "model_name": request.name,
        "license": request.license,
        "language": request.language,
    }
