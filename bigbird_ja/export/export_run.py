"""Export of one checkpoint of a run to a folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.process.console import log, show_waiting
from bigbird_ja.process.extras import require
from bigbird_ja.storage import decode, export_folder
from bigbird_ja.version import VERSION

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.model_dir.model import TrainedModel

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_CODES = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*(,[a-z]{2,3}(-[A-Za-z0-9]+)*)*")


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        step: global step of the checkpoint.
        format: "huggingface" or "saved_model".
        output_dir: exported folder.
        parity: content of parity_report.json, or None for a SavedModel.
    """

    step: int
    format: str
    output_dir: str
    parity: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Parameters of `export`."""

    model_dir: str
    step: int | None
    output_dir: str
    format: str
    overwrite: bool
    data_dir: str | None
    model_name: str | None
    license: str | None
    language: str | None

    @property
    def name(self) -> str:
        """Title of the model card."""
        return self.model_name or storage.get_base_name(self.output_dir.rstrip("/"))

    def check(self) -> None:
        """Check packages and parameters before any work.

        Raises:
            BadInput: A package is missing, or a parameter is invalid.
        """
        if self.format not in ("huggingface", "saved_model"):
            raise BadInput(f"`format` {self.format}: use one of huggingface, saved_model")
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise BadInput(
                f"`license` {self.license}: use an identifier of"
                " https://huggingface.co/docs/hub/repositories-licenses, such as apache-2.0"
            )
        if self.language is not None and not _CODES.fullmatch(self.language):
            raise BadInput(f"`language` {self.language}: use language codes, such as ja, or ja,en")
        if self.format == "huggingface":
            require("safetensors", "transformers")
        inputs = {"`model_dir`": self.model_dir, "`data_dir`": self.data_dir}
        export_folder.check(self.output_dir, inputs)


def export(
    *,
    model_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    step: int | None = None,
    format: Literal["huggingface", "saved_model"] = "huggingface",
    overwrite: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    model_name: str | None = None,
    license: str | None = None,
    language: str | None = None,
) -> ExportResult:
    """Export a checkpoint to a Hugging Face folder or a SavedModel, unless the export exists.

    Args:
        model_dir: folder of the run, on disk or gs://.
        output_dir: folder to write, on disk or gs://.
        step: global step of the checkpoint, or None for the newest.
        format: "huggingface" or "saved_model".
        overwrite: whether a different export in `output_dir` is renamed to OUTPUT_DIR.replaced-N.
        data_dir: data set that the run was trained on, for the model card and the comparison with
            transformers.
        model_name: title of the model card, or None for the name of `output_dir`.
        license: license identifier of the Hub, or None for the license of the model that the run
            started from.
        language: language codes, joined by commas, or None for the codes of the model that the run
            started from. If that model states none, the code is "ja" for a Japanese vocabulary.

    Raises:
        BadInput: A parameter is invalid, or `output_dir` contains other files.
        CommandError: The exported model's results differ from the trained model's. The folder is
            kept.
    """
    request = _Request(
        model_dir=os.fspath(model_dir),
        step=step,
        output_dir=os.fspath(output_dir),
        format=format,
        overwrite=overwrite,
        data_dir=None if data_dir is None else os.fspath(data_dir),
        model_name=model_name,
        license=license,
        language=language,
    )
    request.check()
    from bigbird_ja.export import parity
    from bigbird_ja.model_dir.model import load_run  # This imports TensorFlow.

    model, folder = load_run(request.model_dir, step), request.output_dir
    manifest = _load_training_data(model, request.data_dir) if request.data_dir else None
    record = _record(request, model, manifest)
    if export_folder.is_finished(folder, record, overwrite):
        log(f"{folder} already contains this export of step {model.meta.step:,}")
    else:
        with show_waiting("exporting, and comparing with transformers (about a minute)"):
            fill = partial(_fill, request=request, model=model, manifest=manifest)
            export_folder.write(folder, record, fill, overwrite)
    report = None
    if format == "huggingface":
        report = decode.read_json(storage.join(folder, "parity_report.json"), dict[str, Any])
        if problem := parity.describe_disagreement(report):
            log(parity.format_report(report))
            result = ExportResult(model.meta.step, format, folder, report)
            raise CommandError(
                f"{folder}: {problem}. The folder is kept, and its model card states this. Do not"
                " publish the folder, and report this error with the folder's parity_report.json",
                vars(result),
            )
    return ExportResult(model.meta.step, format, folder, report)


def _fill(local: str, request: _Request, model: TrainedModel, manifest: Manifest | None) -> None:
    """Write the export's files into an empty local directory."""
    if request.format == "saved_model":
        from bigbird_ja.export.saved_model import fill_saved_model

        fill_saved_model(local, model)
        return
    from bigbird_ja.export.folder import fill_huggingface
    from bigbird_ja.export.model_card import Options

    options = Options(request.name, request.license, request.data_dir, manifest, request.language)
    fill_huggingface(local, model, options)


def _load_training_data(model: TrainedModel, data_dir: str) -> Manifest:
    """Load the manifest of a data set, and check that the model was trained on the data set.

    Raises:
        BadInput: The model was trained on another data set.
    """
    from bigbird_ja.data import manifest as manifest_lib

    manifest, meta = manifest_lib.load(data_dir), model.meta
    if manifest.fingerprint != meta.data_fingerprint:
        raise BadInput(
            f"`data_dir` {data_dir} (fingerprint {manifest.fingerprint[:12]}) is not the data set"
            f" that {model.folder} was trained on ({meta.data_fingerprint[:12]}): give the training"
            " data, or leave `data_dir` out"
        )
    return manifest


def _record(request: _Request, model: TrainedModel, manifest: Manifest | None) -> dict[str, Any]:
    """Return the parameters and inputs that determine the content of the export."""
    return {
        "format_version": decode.FORMAT_VERSION,
        "bigbird_ja": VERSION,
        "step": model.meta.step,
        "checkpoint": {name: file.crc32c for name, file in model.meta.files.items()},
        # The record is published with the model, so it identifies the data set by the fingerprint,
        # and not by the path.
        "held_out_data": manifest.fingerprint if manifest else None,
        "format": request.format,
        "model_name": request.name,
        "license": request.license,
        "language": request.language,
    }
