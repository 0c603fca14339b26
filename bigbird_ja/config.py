"""The one typed configuration: what every setting means, its unit, and how overrides are applied.

Order: defaults here, then `--config FILE.yaml`, then `--set section.key=value`, then plain flags;
the last wins. What a data set fixes (`DATA_SET_KEYS`) stays None until its manifest is read
(`with_data_set`); a value given explicitly that disagrees with the manifest is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from bigbird_ja import storage
from bigbird_ja.errors import BadInput


@dataclass
class TokenizeConfig:
    """How the SentencePiece model is trained (flags of `tokenize`)."""

    vocab_size: int = 32000  # pieces, special ones included
    model_type: str = "unigram"  # unigram | bpe
    character_coverage: float = 0.9995  # share of characters that get a piece of their own
    max_sentence_length: int = 16384  # bytes; longer lines are split, never dropped
    max_sentences: int = 2_000_000  # sentences sampled for training; 0 is all


@dataclass
class MakeDataConfig:
    """How records are made (flags of `make-data`). What came out is in the manifest."""

    seq_length: int = 4096  # tokens per sequence, special ones included
    masking: str = "dynamic"  # dynamic: targets drawn while training | static: in the records
    dupe_factor: int = 10  # copies with other masks (static only)
    max_predictions_per_seq: int = 600
    masked_lm_prob: float = 0.15  # share of tokens to predict
    mask_unit: str = "whole_word"  # subword | whole_word | span (n-gram of words)
    word_boundaries: str = "script"  # script: changes of script | mecab: fugashi with unidic-lite
    nsp: bool = False  # next-sentence prediction (segments A and B)
    eval_fraction: float = 0.01  # share of documents held out
    num_shards: int = 0  # train shards; 0 chooses from the corpus's size
    seed: int = 12345


@dataclass
class ModelConfig:
    """BigBird encoder (Zaheer et al. 2020, arXiv:2007.14062), post-norm like BERT."""

    vocab_size: int | None = None  # from the manifest
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_new"  # the tanh form, as Google's BigBird and Hugging Face's default
    max_position_embeddings: int | None = None  # None: the data's seq_length
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1  # block-sparse probabilities get none, as in the ancestor
    initializer_range: float = 0.02  # standard deviation of the truncated normal
    layer_norm_eps: float = 1e-12
    attention_type: str = "block_sparse"  # block_sparse | original_full | simulated_sparse
    block_size: int = 64  # tokens
    num_random_blocks: int = 3  # per query block (`independent`); `rolled` sees 2 tiles = 4 blocks
    random_pattern: str = "rolled"  # rolled | independent (three blocks drawn per row and head)
    pattern_seed: int = 0  # of the static random plan, recorded with the model
    attend_across_documents: bool = True  # packed documents see each other; [SEP] tells them apart


@dataclass
class DataConfig:
    """What the data set fixes (None: taken from its manifest), and how it is read."""

    seq_length: int | None = None  # tokens
    max_predictions_per_seq: int | None = None
    masking: str | None = None  # dynamic | static
    nsp: bool | None = None
    mask_unit: str | None = None  # dynamic only; None: the manifest's; may be changed at training
    shuffle_window: int = 8  # shards that are mixed with each other
    seed: int = 12345  # of order and dynamic masks


@dataclass
class TrainingConfig:
    """One optimiser step is one `global_step`."""

    num_train_steps: int = 1_400_000
    global_batch_size: int = 16  # sequences per step, over all cores and micro-batches
    gradient_accumulation_steps: int = 1  # micro-batches per step and core
    learning_rate: float = 1e-4  # peak
    warmup_steps: int = 10_000
    schedule: str = "linear"  # linear | cosine | wsd (warm-up, stable, decay)
    decay_fraction: float = 0.1  # last share of the steps that decays (wsd only)
    weight_decay: float = 0.01  # decoupled (AdamW); not on biases and layer norms
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    clip_norm: float = 1.0  # global norm; 0 is off
    dtype: str = "bfloat16"  # of activations: bfloat16 | float32; master weights are float32
    gradient_checkpointing: bool = False  # recompute each layer in the backward pass
    seed: int = 12345  # of initial weights and dropout
    log_every_steps: int = 100
    eval_every_steps: int = 10_000  # with --mode=train_and_eval
    max_loop_seconds: float = 15.0  # longest device loop: SIGTERM is answered between loops
    stall_minutes: float = 10.0  # the watchdog ends a run without a finished step; 0 is off


@dataclass
class CheckpointsConfig:
    """Two policies: by time against preemption, by step for keeps."""

    save_every_minutes: float = 10.0  # 0 is off
    save_every_steps: int = 5_000  # 0 is off
    keep_last: int = 5
    keep_every_steps: int = 100_000  # these are never removed; 0 is off


@dataclass
class TpuConfig:
    """The machine that trains."""

    num_cores: int = 8
    name: str = "local"  # on a TPU VM: local
    zone: str | None = None
    project: str | None = None


@dataclass
class Config:
    """Everything that a run depends on; written to `MODEL_DIR/config.yaml`."""

    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    make_data: MakeDataConfig = field(default_factory=MakeDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    tpu: TpuConfig = field(default_factory=TpuConfig)


# Fixed by the data set: key -> where the same choice is stated for making one.
DATA_SET_KEYS: dict[str, str] = {
    "model.vocab_size": "tokenize.vocab_size",
    "data.seq_length": "make_data.seq_length",
    "data.max_predictions_per_seq": "make_data.max_predictions_per_seq",
    "data.masking": "make_data.masking",
    "data.nsp": "make_data.nsp",
}

# A model_dir accepts changes of these: run length, cadence of saving and logging, device.
CHANGEABLE_KEYS: frozenset[str] = frozenset(
    {
        "training.num_train_steps",
        "training.log_every_steps",
        "training.eval_every_steps",
        "training.max_loop_seconds",
        "training.stall_minutes",
        "checkpoints.save_every_minutes",
        "checkpoints.save_every_steps",
        "checkpoints.keep_last",
        "checkpoints.keep_every_steps",
        "tpu.num_cores",
        "tpu.name",
        "tpu.zone",
        "tpu.project",
    }
)

_CHOICES: dict[str, tuple[str, ...]] = {
    "tokenize.model_type": ("unigram", "bpe"),
    "make_data.masking": ("dynamic", "static"),
    "make_data.mask_unit": ("subword", "whole_word", "span"),
    "make_data.word_boundaries": ("script", "mecab"),
    "model.hidden_act": ("gelu_new", "gelu", "relu"),
    "model.attention_type": ("block_sparse", "original_full", "simulated_sparse"),
    "model.random_pattern": ("rolled", "independent"),
    "data.masking": ("dynamic", "static"),
    "data.mask_unit": ("subword", "whole_word", "span"),
    "training.schedule": ("linear", "cosine", "wsd"),
    "training.dtype": ("bfloat16", "float32"),
}


@dataclass(frozen=True)
class Override:
    """One setting that was not left at its default: `key`, `value`, and where it came from."""

    key: str
    value: Any
    source: str  # the file's path, "--set" or "--flag_name"


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the nearest known name, else an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def resolve(
    config_path: str | None = None,
    sets: Iterable[str] = (),
    flag_values: Mapping[str, Any] | None = None,
) -> tuple[Config, list[Override]]:
    """Builds the config from a file, `key=value` strings and flags; the last wins.

    Args:
        config_path: a YAML file of sections, on disk or gs://; None for the defaults.
        sets: strings `section.key=value`; the value is read as YAML.
        flag_values: `section.key` to a value or None (the flag was not given); the source is
            named `--key`.

    Returns:
        The config, not yet completed by a data set, and every override in order.

    Raises:
        BadInput: an unknown key (the nearest is named), a value of the wrong type or choice.
    """
    overrides: list[Override] = []
    if config_path:
        overrides += _read_file(config_path)
    for text in sets:
        key, separator, value = text.partition("=")
        if not separator:
            raise BadInput(f"--set {text!r}: write it as section.key=value")
        overrides.append(Override(key.strip(), _read_yaml(value, f"--set {key}"), "--set"))
    for key, value in (flag_values or {}).items():
        if value is not None:
            overrides.append(Override(key, value, f"--{key.rpartition('.')[2]}"))
    config = Config()
    applied = [_apply(config, override) for override in overrides]
    validate(config)
    return config, applied


def with_data_set(
    config: Config, fixed: Mapping[str, Any], overrides: Iterable[Override] = (), where: str = ""
) -> Config:
    """Completes a config with what a data set fixes.

    Args:
        config: as `resolve` returns it.
        fixed: a value for each of `DATA_SET_KEYS`, from the manifest.
        overrides: what the user set; one that disagrees is an error.
        where: the manifest's path, for the message.

    Raises:
        BadInput: an explicit value disagrees with the data set.
    """
    config = copy(config)
    sources = {override.key: override.source for override in overrides}
    for key in DATA_SET_KEYS:
        stated = get(config, key)
        if stated is not None and stated != fixed[key]:
            raise BadInput(
                f"{key}={stated} ({sources.get(key, 'config')}) disagrees with {where or 'the data set'},"
                f" which has {fixed[key]}: leave it out, or make the data again"
            )
        put(config, key, fixed[key])
    return _complete(config)


def without_data_set(config: Config) -> Config:
    """Completes a config where there is no data set, from what it says how one is to be made."""
    config = copy(config)
    for key, origin in DATA_SET_KEYS.items():
        if get(config, key) is None:
            put(config, key, get(config, origin))
    return _complete(config)


def _complete(config: Config) -> Config:
    if config.data.mask_unit is None:
        config.data.mask_unit = config.make_data.mask_unit
    length = config.data.seq_length
    if config.model.max_position_embeddings is None:
        config.model.max_position_embeddings = length
    if length and config.model.max_position_embeddings < length:
        raise BadInput(
            f"model.max_position_embeddings={config.model.max_position_embeddings} is shorter than"
            f" the data's sequences of {length}: raise it or leave it out"
        )
    validate(config)
    return config


def validate(config: Config) -> None:
    """Checks choices, ranges and what must divide.

    Raises:
        BadInput: naming the key and what is allowed.
    """
    for key, choices in _CHOICES.items():
        value = get(config, key)
        if value is not None and value not in choices:
            raise BadInput(
                f"{key}={value!r}{nearest(str(value), choices)}: one of {', '.join(choices)}"
            )
    for key, low, high in _RANGES:
        value = get(config, key)
        if value is not None and not low <= value <= high:
            raise BadInput(f"{key}={value}: must lie between {low} and {high}")
    model, training = config.model, config.training
    if model.hidden_size % model.num_attention_heads:
        raise BadInput(
            f"model.hidden_size={model.hidden_size} is not divisible by"
            f" model.num_attention_heads={model.num_attention_heads}"
        )
    if training.global_batch_size % training.gradient_accumulation_steps:
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} is not divisible by"
            f" training.gradient_accumulation_steps={training.gradient_accumulation_steps}"
        )


_INFINITY = float("inf")
_RANGES: list[tuple[str, float, float]] = [
    ("tokenize.vocab_size", 16, 10_000_000),
    ("tokenize.character_coverage", 0.5, 1.0),
    ("tokenize.max_sentences", 0, _INFINITY),
    ("make_data.seq_length", 8, 1_000_000),
    ("make_data.dupe_factor", 1, 1000),
    ("make_data.max_predictions_per_seq", 1, 1_000_000),
    ("make_data.masked_lm_prob", 0.0001, 0.9),
    ("make_data.eval_fraction", 0.0, 0.5),
    ("make_data.num_shards", 0, 100_000),
    ("model.hidden_size", 1, 65536),
    ("model.num_layers", 1, 1000),
    ("model.num_attention_heads", 1, 1024),
    ("model.intermediate_size", 1, 1_000_000),
    ("model.type_vocab_size", 1, 1024),
    ("model.hidden_dropout_prob", 0.0, 0.9),
    ("model.block_size", 1, 4096),
    ("model.num_random_blocks", 0, 64),
    ("data.shuffle_window", 1, 100_000),
    ("training.num_train_steps", 1, _INFINITY),
    ("training.global_batch_size", 1, 1_000_000),
    ("training.gradient_accumulation_steps", 1, 100_000),
    ("training.learning_rate", 0.0, 10.0),
    ("training.warmup_steps", 0, _INFINITY),
    ("training.decay_fraction", 0.0, 1.0),
    ("training.weight_decay", 0.0, 10.0),
    ("training.clip_norm", 0.0, _INFINITY),
    ("training.log_every_steps", 1, _INFINITY),
    ("training.eval_every_steps", 1, _INFINITY),
    ("training.max_loop_seconds", 0.1, 25.0),
    ("training.stall_minutes", 0.0, _INFINITY),
    ("checkpoints.save_every_minutes", 0.0, _INFINITY),
    ("checkpoints.save_every_steps", 0, _INFINITY),
    ("checkpoints.keep_last", 1, 100_000),
    ("checkpoints.keep_every_steps", 0, _INFINITY),
    ("tpu.num_cores", 1, 4096),
]


def flatten(config: Config) -> dict[str, Any]:
    """`section.key` to value, in the order of definition."""
    return {
        f"{section}.{key}": value
        for section, values in dataclasses.asdict(config).items()
        for key, value in values.items()
    }


def get(config: Config, key: str) -> Any:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def put(config: Config, key: str, value: Any) -> None:
    """Sets `section.key` in place."""
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)


def copy(config: Config) -> Config:
    """A deep copy."""
    return from_dict(dataclasses.asdict(config))


def from_dict(values: Mapping[str, Any], source: str = "config") -> Config:
    """A config from nested dictionaries, checked like a file."""
    config = Config()
    for override in _overrides_of(values, source):
        _apply(config, override)
    return config


def to_yaml(config: Config) -> str:
    """The resolved config as YAML, as `MODEL_DIR/config.yaml` holds it."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def load_resolved(path: str) -> Config:
    """Reads a `config.yaml` that `to_yaml` wrote.

    Raises:
        BadInput: no such file, or not a config.
    """
    config = Config()
    for override in _read_file(path):
        _apply(config, override)
    validate(config)
    return config


def fingerprint(config: Config) -> str:
    """SHA-256 (hex) of all that must not change between restarts of one run."""
    kept = {key: value for key, value in flatten(config).items() if not _is_free(key)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def differences(old: Config, new: Config) -> list[str]:
    """`key: old -> new` for every setting that a `model_dir` does not accept a change of."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and not _is_free(key)
    ]


def _is_free(key: str) -> bool:
    # The sections `tokenize` and `make_data` say how data is made; a run depends on its manifest.
    return key in CHANGEABLE_KEYS or key.startswith(("tokenize.", "make_data."))


def echo(config: Config, overrides: Iterable[Override]) -> str:
    """One line per override: `key = value  (was default, from source)`."""
    defaults = flatten(Config())
    lines = [
        f"  {o.key} = {o.value}  (default {defaults[o.key]}; from {o.source})" for o in overrides
    ]
    return "\n".join(lines) if lines else "  (all defaults)"


def _read_file(path: str) -> list[Override]:
    try:
        text = storage.read_bytes(path).decode("utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BadInput(f"--config {path}: no such file") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"--config {path}: not UTF-8 (byte {error.start})") from error
    values = _read_yaml(text, path)
    if values is None:
        return []
    if not isinstance(values, dict):
        raise BadInput(f"{path}: expected sections such as `model:` and `training:`")
    return _overrides_of(values, path)


def _read_yaml(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{where}: not YAML: {' '.join(str(error).split())}") from error


def _overrides_of(values: Mapping[str, Any], source: str) -> list[Override]:
    sections = [f.name for f in dataclasses.fields(Config)]
    overrides = []
    for section, entries in values.items():
        if section not in sections:
            raise BadInput(
                f"{source}: unknown section {section!r}{nearest(str(section), sections)}"
            )
        if entries is None:
            continue
        if not isinstance(entries, dict):
            raise BadInput(f"{source}: {section} must hold `key: value` lines")
        overrides += [Override(f"{section}.{key}", value, source) for key, value in entries.items()]
    return overrides


def _apply(config: Config, override: Override) -> Override:
    """Sets one value in place; returns the override with the value as it was understood."""
    known = flatten(config)
    if override.key not in known:
        raise BadInput(
            f"{override.source}: unknown setting {override.key!r}{nearest(override.key, known)}"
        )
    section, _, name = override.key.partition(".")
    hints = typing.get_type_hints(type(getattr(config, section)))
    value = _coerce(override.value, hints[name], override)
    put(config, override.key, value)
    return dataclasses.replace(override, value=value)


def _coerce(value: Any, hint: Any, override: Override) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if hint is float and isinstance(value, str):
        value = _number(value)  # YAML 1.1 reads 1e-4 as a string
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if hint is int and isinstance(value, str):
        number = _number(value)
        value = int(number) if isinstance(number, float) and number.is_integer() else value
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise BadInput(
            f"{override.source}: {override.key}={override.value!r} is not a valid {hint.__name__}"
        )
    return value


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
