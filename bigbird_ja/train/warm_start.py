"""Initial weights of a new run from another model (`init_from`, a warm start).

The source is a Hugging Face folder of a ModernBERT, BERT, RoBERTa or BigBird (package
`huggingface`), a MODEL_DIR, or a TensorFlow checkpoint of Google's BigBird or BERT. All weights are
copied. If the table of position embeddings is longer in the new run, the source's rows are repeated
to fill it. The optimizer's state is not copied. Parameters that the source lacks keep their random
initial weights, and a warning lists them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import hub, state_dict
from bigbird_ja.huggingface.description import describe
from bigbird_ja.huggingface.init_from import find_kind
from bigbird_ja.huggingface.weights import Source, read_folder
from bigbird_ja.model import params as params_lib
from bigbird_ja.model.params import ParameterSpec, make_parameter_specs
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.model_dir.model import load_parameters
from bigbird_ja.model_dir.variables import read_variables
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import content_addressed
from bigbird_ja.storage.disk import compute_file_crc32c, create_scratch_directory
from bigbird_ja.train.job import Job

# Pairs of name prefixes: in this package, and for the same variables in Google's checkpoints. The
# first pair is for checkpoints that were trained with Google's released BigBird code. The other
# pairs are for BERT's names. The last pair also occurs in some checkpoints of BigBird.
_OTHER_NAMES = (
    ("cls/predictions/transform/", "transform/"),
    ("cls/predictions/transform/", "cls/predictions/transform/dense/"),
    ("cls/predictions/transform/", "cls/predictions/transform/LayerNorm/"),
    ("bert/encoder/LayerNorm/", "bert/embeddings/LayerNorm/"),
)
_NAMES_IN_WARNING = 8
# Prefix of variables that a source must contain, as a warm start without them is a mistake.
_ESSENTIAL = "bert/encoder/"


@dataclass(frozen=True)
class InitialWeights:
    """Parameters of another model, for a new run."""

    # float32 arrays. The keys are this package's names of the variables.
    values: Mapping[str, np.ndarray]
    summary: str  # Text for the log, with warnings.
    record: dict[str, Any]  # Record of the source for events.jsonl.


def load_warm_start(job: Job, model_dir: ModelDir) -> InitialWeights | None:
    """Load the parameters of `init_from`.

    The result is None if `init_from` is not given, or if a run is resumed.
    """
    if not job.init_from:
        return None
    if model_dir.is_continued:
        job.deps.log(f"`init_from` is ignored: {model_dir.path} is resumed")
        return None
    first = load_initial(job.init_from, job.config, job.manifest)
    job.deps.log(first.summary)
    return first


def load_initial(source: str, config: Config, data: Data) -> InitialWeights:
    """Load initial weights from another model.

    Args:
        source: folder, or prefix of a checkpoint, on disk or gs://.
        config: config of the new run.
        data: facts of the new run's data set. Tokens that `make-data` added to the tokenizer of a
            Hugging Face folder get random embeddings.

    Raises:
        BadInput: The source is missing, not readable, or of another architecture.
    """
    specs = make_parameter_specs(config, data)
    model = _read(source, config, specs)
    taken: dict[str, np.ndarray] = {}
    lacking: dict[str, str] = {}
    adapted = []
    for name, spec in specs.items():
        value, note = _take(name, spec, model)
        if value is None:
            lacking[name] = note
        elif np.isfinite(value).all():
            taken[name] = value
            adapted += [note] if ": " in note else []
        else:
            raise BadInput(
                f"{model.names.get(name, name)} in `init_from` {source} contains NaN or infinite"
                " numbers: use an earlier checkpoint of that model"
            )
    if essential := [name for name in lacking if name.startswith(_ESSENTIAL)]:
        raise BadInput(
            f"{len(essential)} variables of the encoder in `init_from` {source} do not fit this"
            f" config, the first is {essential[0]} ({lacking[essential[0]]}): use the source's"
            " model.* settings"
        )
    counted = f"{len(taken)} of {len(specs)} variables"
    text = "; ".join([f"initial weights from {source} ({model.kind}): {counted}", *adapted])
    place = source if storage.is_remote(source) else os.path.abspath(source)
    record: dict[str, Any] = {"source": place, "kind": model.kind, "weights": dict(model.weights)}
    record |= {"adapted": adapted, "random": sorted(lacking)}
    if state_dict.has_weights(source):
        record["folder"] = describe(source)
    if (on_hub := hub.parse_cached_path(place))[0]:
        record["hub"] = "@".join(on_hub)
    if model.origin:
        record["init_from"] = model.origin
    return InitialWeights(taken, text + _list_warnings(model, config, lacking, len(specs)), record)


def _list_warnings(model: Source, config: Config, lacking: dict[str, str], count: int) -> str:
    """Format warnings about random parameters, and about settings that differ from the source's."""
    lines = []
    if lacking:
        reasons = [f"{name} ({why})" for name, why in lacking.items()]
        named = ", ".join(reasons[:_NAMES_IN_WARNING])
        more = len(lacking) - _NAMES_IN_WARNING
        named += f" and {more} more" if more > 0 else ""
        lines.append(f"{len(lacking)} of {count} variables keep random initial weights: {named}")
    for name, theirs in model.settings.items():
        ours = getattr(config.model, name)
        if theirs not in (None, ours) and name != "max_position_embeddings":
            difference = f"the source has model.{name}={theirs}, this config {ours}"
            lines.append(f"{difference}: use the source's value")
    return "".join(f"\nwarning: {line}" for line in lines)


def _take(name: str, spec: ParameterSpec, model: Source) -> tuple[np.ndarray | None, str]:
    """Return the value of one parameter, and its name in the source.

    If the value was adapted, a note follows the name. If the source has no suitable value, return
    None and the reason.
    """
    value = model.values.get(name)
    if value is None:
        return None, "not in the source"
    source = model.names.get(name, name)
    if np.asarray(value).dtype.kind not in "fiu":
        raise BadInput(
            f"{source} in `init_from` contains no numbers: is this a checkpoint of a model?"
        )
    value = np.asarray(value, np.float32)
    if value.shape != spec.shape and value.size == np.prod(spec.shape) and value.ndim > 1:
        # In Google's checkpoints attention kernels have separate axes for heads and head size.
        value = value.reshape(spec.shape)
    if value.shape == spec.shape:
        return value, source
    if name == params_lib.POSITIONS and value.shape[1:] == spec.shape[1:]:
        # A short table is repeated, as in Longformer (arXiv:2004.05150, section 5), and a long one
        # is cut.
        return np.resize(value, spec.shape), (
            f"{source}: {len(value):,} positions "
            + ("repeated" if len(value) < spec.shape[0] else "cut")
        )
    return None, f"{source} has shape {'x'.join(map(str, value.shape))}"


def _read(source: str, config: Config, specs: Mapping[str, ParameterSpec]) -> Source:
    kind = find_kind(source)
    if kind == "checkpoint":
        return _read_google(source.removesuffix(".index"), specs)
    content_addressed.verify(source)
    if kind == "run":
        _, _, params, meta = load_parameters(source)
        weights = {name: file.crc32c for name, file in meta.files.items()}
        origin = run_log.find_origin(run_log.read_events(source))
        about = f"a run of bigbird-ja, step {meta.step:,}"
        return Source(about, weights, params, {}, origin=origin)
    return read_folder(source, config, specs)


def _read_google(prefix: str, specs: Mapping[str, ParameterSpec]) -> Source:
    directory, base = storage.get_directory(prefix), storage.get_base_name(prefix)
    content_addressed.verify(directory)
    with create_scratch_directory() as scratch:
        files = [
            storage.fetch(storage.join(directory, name), scratch)
            for name in storage.list_files(directory)
            if name.startswith(f"{base}.")
        ]
        variables = read_variables(os.path.join(os.path.dirname(files[0]), base))
        weights = {os.path.basename(file): compute_file_crc32c(file)[0] for file in files}
    names = {}
    for name in specs:
        others = [b + name.removeprefix(a) for a, b in _OTHER_NAMES if name.startswith(a)]
        if known := [other for other in (name, *others) if other in variables]:
            names[name] = known[0]
    values = {name: variables[other] for name, other in names.items()}
    return Source("a TensorFlow checkpoint", weights, values, names)
