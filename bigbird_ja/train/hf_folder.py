"""Convert encoders of Hugging Face folders to ours: settings and weights.

ModernBERT becomes a ModernBERT; BERT, RoBERTa and BigBird become a BigBird, whose attention is full
if the positions of a BERT or RoBERTa hold the data's sequences.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bigbird_ja import storage
from bigbird_ja.data.manifest import TOKENIZER_NAME, Manifest
from bigbird_ja.model import params, pattern, state_dict
from bigbird_ja.model.params import POSITIONS, SEGMENT_TABLE, SEGMENTS, WORDS, ParameterSpec
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.provenance import Override
from bigbird_ja.settings.schema import Config, ModelConfig
from bigbird_ja.storage import decode, hub
from bigbird_ja.text import folder_tokenizer
from bigbird_ja.text.load import tokenizer_of

ROBERTAS = ("roberta", "xlm-roberta")
_ARCHITECTURES = {
    "modernbert": "modernbert",
    **dict.fromkeys(("bert", *ROBERTAS, "big_bird"), "bigbird"),
}
# Models that a BigBird of full attention computes the same as, and transformers' names of them.
_STOCK = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
_HEADS = ("ForMaskedLM", "ForPreTraining", "Model")  # ends of their classes' names
# RoBERTa numbers positions from its padding id + 1 on; the rows below are never read.
_FIRST_POSITION = 2
_BY_PIECE = (WORDS, "cls/predictions/output_bias")
_ACTIVATIONS = {
    **{"gelu": "gelu", "relu": "relu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_new"),
}
# Keys of config.json whose values the weights were trained with; where two stand for one setting,
# the later is ModernBERT's, which ignores the other.
_KEYS = (
    "hidden_size num_hidden_layers num_attention_heads intermediate_size layer_norm_eps norm_eps"
    " local_attention global_attn_every_n_layers global_rope_theta local_rope_theta"
)
# Keys of which only one value is supported, with that value. ModernBERT does not use the last: it
# differs from model to model.
_FIXED = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "tie_word_embeddings": True,
    "is_decoder": False,
    "rope_scaling": None,
    "position_embedding_type": "absolute",
}
# Share of a folder's tokens that have the same ids in a data set made with its tokenizer, at least:
# special ones may be renamed (`text.model_proto.adapt`).
_SAME_TOKENS = 0.99
_ADVICE = "is this a Hugging Face folder?"

T = TypeVar("T")


@dataclass(frozen=True)
class _Rope:
    rope_theta: float | None = None
    rope_type: str = "default"


@dataclass(frozen=True)
class _Ropes:
    full_attention: _Rope
    sliding_attention: _Rope


@dataclass(frozen=True)
class FolderConfig:
    """Holds the keys of config.json that no setting of ours stands for one by one."""

    model_type: str = "unknown"
    architectures: list[str] | None = None
    vocab_size: decode.Count = 0
    hidden_act: str | None = None
    hidden_activation: str | None = None
    classifier_activation: str | None = None
    max_position_embeddings: decode.Count | None = None
    layer_types: list[str] | None = None
    rope_parameters: _Ropes | None = None  # transformers 5's names
    quantization_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Source:
    """Holds the variables of another model, by our names where those are known."""

    kind: str
    weights: Mapping[str, str]  # files of weights: SHA-256, or CRC32C of a checkpoint's
    values: Mapping[str, np.ndarray]
    names: Mapping[str, str]  # our name -> the source's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `model`, as the source has them
    origin: dict[str, Any] | None = None  # of a run that began from other weights itself


@dataclass(frozen=True)
class Encoder:
    """Describes a model that a run can start from.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        vocab_size: rows of the word embeddings.
        settings: ours of `model`, as far as config.json states them; ranges are not checked.
        positions: tokens that learned positions are for; 0 without such, or for a BigBird.
    """

    model_type: str
    vocab_size: int
    settings: dict[str, Any]
    positions: int = 0


def read_config(folder: str) -> Encoder:
    """Read config.json.

    Raises:
        BadInput: missing, of an architecture or with a head that no run can start from, or of a
            variant of one that is not supported.
    """
    path = storage.join(folder, "config.json")
    with decode.made_by_others(path, "a model's config", _ADVICE):
        content = decode.read_json(path, dict[str, Any], _ADVICE)
    config = decode.convert(content, FolderConfig, path, _ADVICE)
    if config.model_type not in _ARCHITECTURES:
        raise BadInput(
            f"{path}: a {config.model_type} model; a run can start from {', '.join(_ARCHITECTURES)}"
        )
    architecture = _ARCHITECTURES[config.model_type]
    if architecture == "modernbert":
        content.pop("position_embedding_type", None)
    if problem := next(_problems(config, content), None):
        raise BadInput(f"{path}: {problem}")
    stated = {key: content[key] for key in _KEYS.split() if content.get(key) is not None}
    settings = {state_dict.SETTINGS.get(key, key): value for key, value in stated.items()}
    settings["architecture"] = architecture
    settings["hidden_act"] = _ACTIVATIONS[_activations(config)[0]]
    if architecture == "modernbert":
        settings |= _of_layers(config)
    positions = (config.max_position_embeddings or 0) if config.model_type in _STOCK else 0
    if config.model_type in ROBERTAS:
        positions -= _FIRST_POSITION
    return Encoder(config.model_type, config.vocab_size, settings, positions)


def stock_class(model_type: str | None, model: ModelConfig, nsp: bool) -> str | None:
    """Return transformers' class of a source that computes what the model does, or None."""
    name = _STOCK.get(model_type or "")
    if name is None or (nsp and name != "Bert") or not pattern.is_full_throughout(model):
        return None
    return f"{name}For{'PreTraining' if nsp else 'MaskedLM'}"


def attention_notice(source: str, config: Config, manifest: Manifest) -> str | None:
    """Return what a BERT's or RoBERTa's attention becomes, and its class; None for others."""
    theirs = read_config(source) if state_dict.has_weights(source) else None
    if theirs is None or theirs.model_type not in _STOCK:
        return None
    has = f"{source} has {theirs.positions:,} positions, the data {manifest.seq_length:,} tokens"
    if stock := stock_class(theirs.model_type, config.model, manifest.nsp):
        return (
            f"attention: full, as the source's ({has}); `export` makes a {stock} again."
            " --set model.attention_type=block_sparse takes BigBird's"
        )
    return (
        f"attention: BigBird's ({has}); `export` makes a BigBird, which needs code of its own."
        " --set model.attention_type=original_full keeps the source's attention and class"
    )


def adopted_settings(
    source: str, run: Config | None, manifest: Manifest, data_dir: str
) -> list[Override]:
    """Return the settings that a Hugging Face folder fixes for a model; none of other sources.

    Args:
        source: of `--init_from`.
        run: of a run that goes on, which has them already.
        manifest: of the data set. The model keeps more embeddings than its tokenizer has tokens.
        data_dir: of the data set.

    Raises:
        BadInput: nothing there, no weights, a model that no run can start from, or a data set that
            was made with another tokenizer than the folder's.
    """
    if not state_dict.has_weights(source):
        if run is None and stated_settings(source):
            raise BadInput(
                f"--init_from {source}: config.json without weights (model.safetensors or"
                " pytorch_model.bin): copy the whole folder"
            )
        return []
    if run is not None:
        known, where = dataclasses.asdict(run.model), "the run"
    else:
        theirs = read_config(source)
        known, where = dict(theirs.settings), f"{source}/config.json"
        if manifest.tokenizer_sha256:
            _check_tokenizer(source, theirs, storage.join(data_dir, TOKENIZER_NAME))
        if known.get("max_position_embeddings", 0) < manifest.seq_length:  # rotary: none is learnt
            known.pop("max_position_embeddings", None)
        if manifest.seq_length <= theirs.positions:  # its own length: its own attention
            known["max_position_embeddings"] = theirs.positions
            known["attention_type"] = "original_full"
        if theirs.vocab_size >= manifest.vocab_size:
            known["vocab_size"] = theirs.vocab_size
    return [Override(f"model.{name}", value, where) for name, value in known.items()]


def stated_settings(source: str) -> list[Override]:
    """Return the settings that config.json states, for a run whose data set is not known yet.

    Weights are not read, and need not be there. A model of ours or a TensorFlow checkpoint states
    none: its run has a config of its own.

    Raises:
        BadInput: nothing there, or a model that no run can start from.
    """
    if not storage.exists(storage.join(source, "config.json")):
        if storage.exists(source) or storage.exists(f"{source.removesuffix('.index')}.index"):
            return []
        raise BadInput(f"--init_from {source}: no such folder or checkpoint: check the path")
    theirs = read_config(source)
    known = theirs.settings | ({"vocab_size": theirs.vocab_size} if theirs.vocab_size else {})
    known.pop("max_position_embeddings", None)  # the data's length decides
    return [Override(f"model.{k}", value, f"{source}/config.json") for k, value in known.items()]


def _check_tokenizer(source: str, encoder: Encoder, path: str) -> None:
    """Refuse a data set whose ids stand for other tokens than the rows of the embeddings.

    Args:
        source: the folder; one without a tokenizer proves nothing.
        encoder: its model.
        path: of the data set's tokenizer.

    Raises:
        BadInput: it is not the folder's, or the folder's has more tokens than embeddings.
    """
    theirs = folder_tokenizer.tokens_in(source)
    if not theirs:
        return
    tokenizer = tokenizer_of(storage.read_bytes(path), path)
    ours = {name: i for i, name in enumerate(tokenizer.names)}
    same = sum(name in ours and i in (None, ours[name]) for name, i in theirs.items())
    if same < _SAME_TOKENS * len(theirs):
        raise BadInput(
            f"--init_from {source}: the data was made with another tokenizer, so its ids stand for"
            f" other words: make it with `bigbird-ja make-data --tokenizer {source}`"
        )
    last = max((ours[name] for name in theirs if name in ours), default=0)
    if encoder.vocab_size <= last:
        raise BadInput(
            f"{source}/config.json: embeddings of {encoder.vocab_size:,} tokens (vocab_size), and"
            f" the folder's tokenizer, by which the data was made, has ids up to {last:,}: the"
            " folder's files do not belong together"
        )


def describe(folder: str) -> dict[str, Any]:
    """Return what a folder states about itself, for the record of a run.

    A model card needs it when the folder may be gone. Missing or damaged files state nothing.

    Returns:
        config: the content of config.json; name: on the Hub; license, language, tags: of its model
        card; modules: sentence-transformers' kinds, in order; Transformer, Pooling, prompts: their
        settings. Only keys that are stated.
    """
    config = _stated(folder, "config.json", dict[str, Any]) or {}
    card, body = _model_card(folder)
    modules = _stated(folder, "modules.json", list[dict[str, str | int]]) or []
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    pooling = f"{kinds.index('Pooling') if 'Pooling' in kinds else ''}_Pooling/config.json"
    facts = {
        "config": config,
        "name": _hub_name(folder, config, body),
        **{key: card.get(key) for key in ("license", "language", "tags")},
        "modules": kinds,
        "Transformer": _stated(folder, "sentence_bert_config.json", dict[str, Any]),
        "Pooling": _stated(folder, pooling, dict[str, Any]),
        "prompts": _stated(folder, "config_sentence_transformers.json", dict[str, Any]),
    }
    return {key: value for key, value in facts.items() if value}


def _stated(folder: str, name: str, kind: type[T]) -> T | None:
    """Return the content of a JSON file; None if it is missing or damaged."""
    with contextlib.suppress(BadInput, FileNotFoundError):
        return decode.read_json(storage.join(folder, name), kind)
    return None


def _model_card(folder: str) -> tuple[dict[str, Any], str]:
    """Return the header and the text of README.md; both empty if it is missing or damaged."""
    path = storage.join(folder, "README.md")
    with contextlib.suppress(BadInput, FileNotFoundError, UnicodeDecodeError):
        text = storage.read_text(path).replace("\r\n", "\n")
        if match := re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL):
            header = decode.read_yaml(match[1], path)
            return header if isinstance(header, dict) else {}, match[2]
        return {}, text
    return {}, ""


def _hub_name(folder: str, config: Mapping[str, Any], card: str) -> str | None:
    """Return NAME/REPO by the client's cache, the card's code, or config.json."""
    title = re.search(r"^# +(.+)", card, re.MULTILINE)
    titles = (title[1].strip() if title else "", storage.base_name(folder.rstrip("/")))
    loaded = re.findall(r"(?:from_pretrained|SentenceTransformer)\(\s*[\"']([^\"']+)", card)
    names = [name for name in loaded if name.rpartition("/")[2] in titles]
    names = [hub.cached_name(folder)[0], *names, str(config.get("_name_or_path"))]
    return next((name for name in names if hub.NAME.fullmatch(name)), None)


def _problems(config: FolderConfig, content: Mapping[str, Any]) -> Iterator[str]:
    """Name what of a known architecture cannot be used, and what serves."""
    for key, value in _FIXED.items():
        if content.get(key, value) != value:
            yield f"{key}={content[key]!r}; only {value!r} is supported"
    if config.quantization_config is not None:
        yield "quantised weights: take the folder of the full ones"
    classes = config.architectures or []
    if classes and not any(name.endswith(_HEADS) for name in classes):
        yield (
            f"{', '.join(classes)}, a head that no run can start from: take the folder of the model"
            " that it was fine-tuned from (...ForMaskedLM, ...ForPreTraining, ...Model)"
        )
    layers, head = _activations(config)
    for activation in (layers, head):
        if activation not in _ACTIVATIONS:
            yield f"the activation {activation!r}; supported are {', '.join(_ACTIVATIONS)}"
    if _ACTIVATIONS[layers] != _ACTIVATIONS[head]:
        yield (
            f"{layers} in its layers and {head} in its masked-LM head: the two must be the same"
            " (ModernBERT's keys are hidden_activation and classifier_activation)"
        )
    ropes = config.rope_parameters
    if ropes and {ropes.full_attention.rope_type, ropes.sliding_attention.rope_type} != {"default"}:
        yield "rope_parameters other than of rope_type 'default'"
    if config.layer_types and _global_every(config.layer_types) == 0:
        yield "layer_types: only every n-th layer can be 'full_attention'"


def _activations(config: FolderConfig) -> tuple[str, str]:
    """Return the activations of the layers and of the masked-LM head, as transformers reads them.

    Keys that are missing have its defaults, and RoBERTa's head has no key.
    """
    if config.model_type == "modernbert":
        return config.hidden_activation or "gelu", config.classifier_activation or "gelu"
    layers = config.hidden_act or ("gelu_new" if config.model_type == "big_bird" else "gelu")
    return layers, "gelu" if config.model_type in ROBERTAS else layers


def _of_layers(config: FolderConfig) -> dict[str, Any]:
    """Return the length of a ModernBERT, and its layers' settings by transformers 5's names."""
    values: dict[str, Any] = {"max_position_embeddings": config.max_position_embeddings or None}
    if config.layer_types:
        values["global_attn_every_n_layers"] = _global_every(config.layer_types)
    if ropes := config.rope_parameters:
        values["global_rope_theta"] = ropes.full_attention.rope_theta
        values["local_rope_theta"] = ropes.sliding_attention.rope_theta
    return {name: value for name, value in values.items() if value is not None}


def _global_every(layer_types: list[str]) -> int:
    """Return n where every n-th layer is global, from the first on; 0 where it is not so."""
    places = [i for i, kind in enumerate(layer_types) if kind == "full_attention"]
    every = places[1] if len(places) > 1 else len(layer_types)
    return every if places == list(range(0, len(layer_types), every)) else 0


def read_folder(folder: str, config: Config, specs: Mapping[str, ParameterSpec]) -> Source:
    """Read a folder's model.

    Args:
        folder: on disk or gs://.
        config: of the new run.
        specs: its parameters.

    Raises:
        BadInput: as `read_config` and `state_dict.read`; or the encoder is of another architecture,
            or has tensors that ours has no place for.
    """
    encoder, model = read_config(folder), config.model
    if (architecture := encoder.settings["architecture"]) != model.architecture:
        raise BadInput(
            f"--init_from {folder}: a {encoder.model_type} model becomes a {architecture}, and"
            f" model.architecture is {model.architecture}: leave it out"
        )
    state, checksums = state_dict.read(folder)
    theirs = {_usual(name): name for name in state}
    values: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for name in specs:
        usual = _usual(state_dict.hugging_face_name(model, name))
        names[name] = theirs.get(usual, usual)
        if usual in theirs:
            value = state[names[name]]
            values[name] = value.T if state_dict.is_transposed(name) else value
    if encoder.model_type in ROBERTAS:
        if POSITIONS in values:
            values[POSITIONS] = values[POSITIONS][_FIRST_POSITION:]
        if SEGMENT_TABLE in values:  # one row, which every token has
            values[SEGMENT_TABLE] = np.repeat(values[SEGMENT_TABLE][:1], SEGMENTS, axis=0)
    surplus = [n for n in state if _IN_LAYER.fullmatch(n) and n not in names.values()]
    if surplus:
        raise BadInput(
            f"{folder}: {len(surplus)} tensors of its encoder have no place in"
            f" model.architecture={model.architecture} with {model.num_layers} layers, first"
            f" {surplus[0]}: use its model.* settings"
        )
    _add_pieces(values, names, config, specs)
    kind = f"a Hugging Face folder, {encoder.model_type}"
    return Source(kind, checksums, values, names, encoder.settings)


def _add_pieces(
    values: dict[str, np.ndarray],
    names: dict[str, str],
    config: Config,
    specs: Mapping[str, ParameterSpec],
) -> None:
    """Give random rows to tokens that `make-data --tokenizer` added behind the folder's own."""
    for name in (n for n in _BY_PIECE if n in values):
        old = values[name]
        new = params.initial_value(config, name, specs[name], config.training.seed)
        if len(old) < len(new) and old.shape[1:] == new.shape[1:]:
            new[: len(old)] = old
            values[name] = new
            names[name] = f"{names[name]}: {len(old):,} of {len(new):,} pieces"


# The name of a weight in a layer; position ids and other buffers are none.
_IN_LAYER = re.compile(r".*\.layers?\..*\.(weight|bias|gamma|beta)")
# Other names of parameters, and their usual ones: a model that was saved without its heads has
# no prefix, BERT's pooler is a layer deeper, old ones have the layer norms' names of TensorFlow.
_RENAMED = {
    r"^(bert|roberta|model)\.": "",
    r"^pooler\.dense\.": "pooler.",
    r"LayerNorm\.gamma$": "LayerNorm.weight",
    r"LayerNorm\.beta$": "LayerNorm.bias",
    r"^lm_head\.dense\.": "cls.predictions.transform.dense.",
    r"^lm_head\.layer_norm\.": "cls.predictions.transform.LayerNorm.",
    r"^lm_head\.bias$": "cls.predictions.bias",
}


def _usual(name: str) -> str:
    for form, usual in _RENAMED.items():
        name = re.sub(form, usual, name)
    return name
