"""Warm start: parameters of a finished model as the first values of a new run.

Three kinds of source: a Hugging Face folder (`model.safetensors`) of a BigBird or a BERT, a
MODEL_DIR of ours, and a TensorFlow checkpoint with the names of Google's BigBird or BERT. A BERT's
positions are repeated end to end, and the other weights are the same. Optimiser state is never
taken: resuming is another thing. What a source lacks keeps its random first value; a table says
which came whence, and a warning below it what stays random.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.model import hf_names
from bigbird_ja.model.params import POSITIONS, ParameterSpec, initial_value, parameter_specs
from bigbird_ja.process.console import table
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run.checkpoints import CheckpointStore, read_variables
from bigbird_ja.run.model import load_parameters
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import decode
from bigbird_ja.storage.scratch import scratch_directory
from bigbird_ja.text import tokenizer
from bigbird_ja.train.lengths import repeated

_WEIGHTS = "model.safetensors"
_MOST_WEIGHTS = 32 << 30  # bytes; read whole, and the largest BigBird has 2.3 GB
_INITIAL = "random first value"
_BY_PIECE = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")
# Where else a checkpoint may have a variable of ours, by the beginning of its name: training with
# Google's released BigBird code creates the first, BERT's the others; some of BigBird's checkpoints
# have the first layer norm where BERT has it.
_OTHER_NAMES = (
    ("cls/predictions/transform/", "transform/"),
    ("cls/predictions/transform/", "cls/predictions/transform/dense/"),
    ("cls/predictions/transform/", "cls/predictions/transform/LayerNorm/"),
    ("bert/encoder/LayerNorm/", "bert/embeddings/LayerNorm/"),
)
_NAMES_IN_WARNING = 8
# Without these a warm start is a mistake, whatever else matched.
_ESSENTIAL = "bert/encoder/"


@dataclass(frozen=True)
class Found:
    """The variables of a source, by our names where we know them."""

    kind: str
    values: Mapping[str, np.ndarray]
    theirs: Mapping[str, str]  # our name -> the source's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `model`, as the source says


def load_initial(
    source: str, config: Config, tokenizer_sha256: str = ""
) -> tuple[dict[str, np.ndarray], str]:
    """First values from another model.

    Args:
        source: a folder or a checkpoint's prefix, on disk or gs://.
        config: of the new run, completed by a data set.
        tokenizer_sha256: of the data set's tokenizer. Where it was made of the source's, the word
            embeddings follow their pieces to other ids.

    Returns:
        The parameters that the source has, float32 by our names, and for people the table, with a
        warning where parameters stay random.

    Raises:
        BadInput: nothing there, not readable, or of another architecture.
    """
    specs = parameter_specs(config)
    found = _with_our_ids(_read(source, specs), source, config, tokenizer_sha256)
    taken: dict[str, np.ndarray] = {}
    rows = []
    for name, spec in specs.items():
        value, how = _take(name, spec, found)
        if value is not None:
            taken[name] = value
        rows.append((name, "x".join(map(str, spec.shape)), how))
    _check(source, rows, taken)
    _check_finite(source, taken, found.theirs)
    header = f"first values from {source} ({found.kind}):"
    text = f"{header}\n{table(_folded(rows), ['variable', 'shape', 'comes from'])}"
    lacking = [name for name in specs if name not in taken]
    return taken, text + _warning(lacking, len(specs)) + _other_settings(found, config)


def _with_our_ids(found: Found, source: str, config: Config, tokenizer_sha256: str) -> Found:
    """The source with its rows of pieces where the data set's tokenizer has them; what `make-data
    --tokenizer` added to the source's tokenizer gets random first values."""
    if not found.settings:  # of Hugging Face's folders alone
        return found
    ids = tokenizer.old_ids_in(source, tokenizer_sha256)
    if ids is None:
        return found
    values, theirs, specs = dict(found.values), dict(found.theirs), parameter_specs(config)
    for name in (n for n in _BY_PIECE if n in values):
        old, count = np.asarray(values[name]), len(values[name])
        new = initial_value(config, name, specs[name], config.training.seed)
        places = [(i, k) for i, k in enumerate(ids) if k is not None and k < count]
        to, at = map(list, zip(*places, strict=True))
        if len(ids) == len(new) and old.shape[1:] == new.shape[1:]:
            new[to] = old[at]
            values[name] = new
            theirs[name] = f"{theirs[name]}: {len(to):,} of {len(ids):,} pieces"
    return dataclasses.replace(found, values=values, theirs=theirs)


def _warning(lacking: list[str], count: int) -> str:
    """A line about parameters that the source does not give; nothing where it gives all."""
    if not lacking:
        return ""
    named = ", ".join(lacking[:_NAMES_IN_WARNING])
    more = f" and {len(lacking) - _NAMES_IN_WARNING} more" * (len(lacking) > _NAMES_IN_WARNING)
    return f"\nwarning: {len(lacking)} of {count} variables keep random first values: {named}{more}"


def _other_settings(found: Found, config: Config) -> str:
    """A line for each setting that no shape tells and in which the source differs."""
    return "".join(
        f"\nwarning: the source has model.{name}={value}, this config {own}: use the source's"
        for name, value in found.settings.items()
        if value is not None and value != (own := getattr(config.model, name))
    )


def _take(name: str, spec: ParameterSpec, found: Found) -> tuple[np.ndarray | None, str]:
    """The value for one parameter, or None, and where it comes from."""
    value = found.values.get(name)
    if value is None:
        return None, f"{_INITIAL} (not in the source)"
    value = np.asarray(value, np.float32)
    theirs = found.theirs.get(name, name)
    if value.shape != spec.shape and value.size == np.prod(spec.shape) and value.ndim > 1:
        value = value.reshape(spec.shape)  # attention kernels with the head axis split
    if value.shape == spec.shape:
        return value, theirs
    if name == POSITIONS and value.shape[1:] == spec.shape[1:]:
        return repeated(value, spec.shape[0]), (
            f"{theirs}: {len(value):,} positions "
            + ("repeated" if len(value) < spec.shape[0] else "cut")
        )
    return None, f"{_INITIAL} ({theirs} has shape {'x'.join(map(str, value.shape))})"


def _check(source: str, rows: list[tuple[str, str, str]], taken: Mapping[str, np.ndarray]) -> None:
    lacking = [
        (name, how) for name, _, how in rows if name not in taken and name.startswith(_ESSENTIAL)
    ]
    if lacking:
        name, how = lacking[0]
        raise BadInput(
            f"--init_from {source}: {len(lacking)} variables of the encoder do not fit this config,"
            f" first {name}: {how.removeprefix(_INITIAL).strip(' ()')}: use the source's model.*"
            " settings"
        )


def _check_finite(source: str, taken: Mapping[str, np.ndarray], theirs: Mapping[str, str]) -> None:
    for name, value in taken.items():
        if not np.isfinite(value).all():
            raise BadInput(
                f"--init_from {source}: {theirs.get(name, name)} holds NaN or infinite numbers:"
                " take an earlier checkpoint of that model"
            )


def _folded(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Layers after the first in one line each: a table of 200 lines is not read."""
    shown = []
    for name, shape, how in rows:
        if not name.startswith("bert/encoder/layer_"):
            shown.append((name, shape, how))
            continue
        layer = name.split("/")[2]
        if layer == "layer_0":
            shown.append((name, shape, how))
        elif name.endswith("query/kernel"):
            group = [r for r in rows if r[0].startswith(f"bert/encoder/{layer}/")]
            shown.append((f"bert/encoder/{layer}/*", f"{len(group)} variables", "as layer_0"))
    return shown


def _read(source: str, specs: Mapping[str, ParameterSpec]) -> Found:
    if storage.exists(storage.join(source, _WEIGHTS)):
        return _read_hugging_face(source, specs)
    if _is_run(source):
        _, params, meta = load_parameters(source)
        return Found(f"a run of ours, step {meta.step:,}", params, {})
    prefix = _checkpoint_prefix(source)
    if prefix is not None:
        return _read_google(prefix, specs)
    if storage.exists(storage.join(source, "pytorch_model.bin")):
        raise BadInput(
            f"--init_from {source}: pytorch_model.bin is a pickle, which is never opened: save the"
            " model with safe_serialization=True, as model.safetensors"
        )
    raise BadInput(
        f"--init_from {source}: neither a Hugging Face folder ({_WEIGHTS}), nor a MODEL_DIR, nor a"
        " TensorFlow checkpoint (give PREFIX of PREFIX.index)"
    )


def _is_run(source: str) -> bool:
    if not storage.exists(storage.join(source, "config.yaml")):
        return False
    return bool(CheckpointStore(source).steps())


def _read_hugging_face(source: str, specs: Mapping[str, ParameterSpec]) -> Found:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError as error:
        raise BadInput(
            "--init_from a Hugging Face folder needs safetensors: pip install"
            " 'bigbird-ja[huggingface]'"
        ) from error
    path = storage.join(source, _WEIGHTS)
    try:
        state = load(storage.read_bytes(path, _MOST_WEIGHTS))
    except (SafetensorError, KeyError) as error:
        raise BadInput(f"{path}: not a safetensors file of numbers: {error}") from error
    found = _hugging_face_config(source)
    if found.model_type not in ("big_bird", "bert"):
        raise BadInput(
            f"--init_from {source}: a {found.model_type} model; a big_bird or bert one is needed"
        )
    values, theirs = {}, {}
    for name in specs:
        usual = hf_names.hugging_face_name(name)
        theirs[name] = next((n for n in _hugging_face_names(usual) if n in state), usual)
        if theirs[name] in state:
            value = state[theirs[name]]
            values[name] = value.T if hf_names.is_transposed(name) else value
    settings = {name: getattr(found, name) for name in _SETTINGS}
    return Found(f"a Hugging Face folder, {found.model_type}", values, theirs, settings)


def _hugging_face_names(usual: str) -> list[str]:
    """What a parameter may be called: BERT's pooler is a layer deeper, a model that was saved
    without its heads has no `bert.`, and old ones have the layer norms' names of TensorFlow."""
    names = [usual, usual.replace("bert.pooler.", "bert.pooler.dense.")]
    if "LayerNorm" in usual:
        stem, _, part = usual.rpartition(".")
        names.append(f"{stem}.{'gamma' if part == 'weight' else 'beta'}")
    return [*names, *(name.removeprefix("bert.") for name in names)]


_ASK = "is this a Hugging Face folder?"


@dataclass(frozen=True)
class _HuggingFaceConfig:
    """What of `config.json` is read."""

    model_type: str = "unknown"
    hidden_act: str | None = None
    num_attention_heads: decode.Count | None = None
    layer_norm_eps: float | None = None


# What no shape tells.
_SETTINGS = ("hidden_act", "num_attention_heads", "layer_norm_eps")


def _hugging_face_config(source: str) -> _HuggingFaceConfig:
    path = storage.join(source, "config.json")
    try:
        return decode.read_json(path, _HuggingFaceConfig, _ASK)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing: {_ASK}") from error


def _checkpoint_prefix(source: str) -> str | None:
    """The prefix of a TensorFlow checkpoint: given itself, or its .index, or its directory."""
    prefix = source.removesuffix(".index")
    if storage.exists(f"{prefix}.index"):
        return prefix
    if storage.is_remote(source) or os.path.isdir(source):
        names = [name for name in storage.list_files(source) if name.endswith(".index")]
        if len(names) > 1:
            raise BadInput(
                f"--init_from {source}: several checkpoints ({', '.join(names[:4])}): give one's"
                " prefix"
            )
        if names:
            return storage.join(source, names[0].removesuffix(".index"))
    return None


def _read_google(prefix: str, specs: Mapping[str, ParameterSpec]) -> Found:
    directory, base = storage.directory_of(prefix), storage.base_name(prefix)
    names = [name for name in storage.list_files(directory) if name.startswith(f"{base}.")]
    with scratch_directory() as scratch:
        files = [storage.fetch(storage.join(directory, name), scratch) for name in names]
        variables = read_variables(os.path.join(os.path.dirname(files[0]), base))
    theirs = {}
    for name in specs:
        others = [b + name.removeprefix(a) for a, b in _OTHER_NAMES if name.startswith(a)]
        known = [other for other in (name, *others) if other in variables]
        if known:
            theirs[name] = known[0]
    values = {name: variables[other] for name, other in theirs.items()}
    return Found("a TensorFlow checkpoint", values, theirs)
