"""Export a model in one of two formats.

They are a folder that `AutoTokenizer`, `AutoModelForMaskedLM` and `pipeline("fill-mask")` load, and
a SavedModel: ids in, embeddings and log-probabilities out.
"""

import importlib.resources
import os
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from bigbird_ja.evaluation import TrainedModel
from bigbird_ja.export import hf_tokenizer, model_card, parity
from bigbird_ja.export.model_card import SENTENCE_MODULES, Options
from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.huggingface.state_dict import SETTINGS, to_hugging_face, to_stock
from bigbird_ja.model import pattern
from bigbird_ja.model.forward import encode, inference_config, masked_lm_logits
from bigbird_ja.model.params import SEGMENTS
from bigbird_ja.run import log as run_log
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import decode

# transformers' class replaces random blocks by block 0; this one follows the recorded plan.
_CODE = "modeling_bigbird_ja"
_CODE_FILES = (f"{_CODE}.py", "pattern.py")
_TASKS = (
    "PreTraining MaskedLM SequenceClassification TokenClassification MultipleChoice"
    " QuestionAnswering"
)

# Settings of `model` for which BigBirdConfig has no name; `modeling_bigbird_ja` reads them.
_OURS = ("architecture", "random_pattern", "pattern_seed", "attend_across_documents")
# Keys of config.json that are settings of `model`.
_KEYS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size"
    " max_position_embeddings initializer_range"
)
_BIGBIRD_KEYS = "hidden_act hidden_dropout_prob layer_norm_eps block_size num_random_blocks"
_STOCK_KEYS = "hidden_act layer_norm_eps"
# Keys of a source's config.json that say nothing of the model.
_OF_FILES = ("_name_or_path", "auto_map", "dtype", "tokenizer_class", "transformers_version")
_MODERNBERT_KEYS = (
    "hidden_activation mlp_dropout norm_eps local_attention global_attn_every_n_layers"
    " global_rope_theta local_rope_theta"
)


def model_config(trained: TrainedModel, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config.json`, as transformers 4 and 5 read it.

    It is a `BigBirdConfig`, a `ModernBertConfig`, or the source's class if that computes the same.

    Args:
        trained: of a run.
        source: as `run_log.origin_folder` returns it.
    """
    special, model = trained.tokenizer.special, trained.config.model
    stated = source.get("config", {})
    stock = hf_config.stock_class(stated.get("model_type"), model, trained.data.nsp)
    if model.architecture == "modernbert":
        keys, others = _MODERNBERT_KEYS, _modernbert_config(trained)
    elif stock is not None:
        keys, others = _STOCK_KEYS, _stock_config(stock, stated)
    else:
        keys, others = _BIGBIRD_KEYS, _bigbird_config(trained)
    config = {
        **others,
        **{key: getattr(model, SETTINGS.get(key, key)) for key in f"{_KEYS} {keys}".split()},
        **{f"{p}_token_id": getattr(special, p) for p in ("pad", "bos", "eos", "cls", "sep")},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bigbird_ja": {
            "format_version": decode.FORMAT_VERSION,
            "step": trained.meta.step,
            **{name: getattr(model, name) for name in _OURS},
        },
    }
    if stated.get("model_type") in hf_config.ROBERTAS and stock is not None:
        config["max_position_embeddings"] += special.pad + 1  # the first position's number
    return config


def _stock_config(stock: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source's config.json, without what only its own files need."""
    kept = {key: value for key, value in stated.items() if key not in _OF_FILES}
    segments = min(int(stated.get("type_vocab_size", SEGMENTS)), SEGMENTS)
    return {**kept, "architectures": [stock], "type_vocab_size": segments}


def _modernbert_config(trained: TrainedModel) -> dict[str, Any]:
    model = trained.config.model
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "classifier_activation": model.hidden_act,
        "embedding_dropout": model.hidden_dropout_prob,
        "attention_dropout": 0.0,
    }


def _bigbird_config(trained: TrainedModel) -> dict[str, Any]:
    is_full = pattern.is_full_throughout(trained.config.model)
    code = {
        "AutoModel": f"{_CODE}.BigBirdJaModel",
        **{f"AutoModelFor{task}": f"{_CODE}.BigBirdJaFor{task}" for task in _TASKS.split()},
    }
    return {
        "architectures": ["BigBirdForPreTraining" if trained.data.nsp else "BigBirdForMaskedLM"],
        "model_type": "big_bird",
        **({} if is_full else {"auto_map": code}),
        # Ours drops nothing there; Hugging Face's would, in fine-tuning.
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": SEGMENTS,
        "attention_type": "original_full" if is_full else "block_sparse",
        "use_bias": True,
        "rescale_embeddings": False,
    }


def fill_huggingface(directory: str, model: TrainedModel, options: Options) -> dict[str, Any]:
    """Write the folder's files into an empty local directory.

    Returns:
        The parity report.
    """
    from safetensors.numpy import save_file

    most = model.config.model.max_position_embeddings or 0
    for name, data in hf_tokenizer.files(model.tokenizer, most).items():
        _write(directory, name, data)
    source = run_log.origin_folder(run_log.origin(run_log.read_events(model.folder)))
    config = model_config(model, source)
    _write(directory, "config.json", hf_tokenizer.to_json(config))
    width = model.config.model.hidden_size
    for name, content in _sentence_modules(width, most, source).items():
        _write(directory, name, hf_tokenizer.to_json(content))
    state = to_hugging_face(model.config.model, model.params)
    if model.config.model.architecture == "bigbird":
        for name in _CODE_FILES if "auto_map" in config else ():
            _write(directory, name, _code(name))
        # transformers' classes all have a pooler, and warn where it is missing, though only
        # next-sentence prediction trains it.
        state.setdefault("bert.pooler.weight", np.eye(width, dtype=np.float32))
        state.setdefault("bert.pooler.bias", np.zeros(width, np.float32))
        if config["model_type"] != "big_bird":
            state = to_stock(state, config)
    path = os.path.join(directory, "model.safetensors")
    save_file(state, path, metadata={"format": "pt"})
    # safetensors makes a file that only its owner reads.
    shutil.copymode(os.path.join(directory, "config.json"), path)
    report = parity.compare(directory, model, options)
    _write(directory, "parity_report.json", hf_tokenizer.to_json(report))
    _write(directory, "README.md", model_card.text(model, options, report).encode())
    return report


def _sentence_modules(width: int, most: int, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return sentence-transformers' files: as the source's, else the mean of the tokens.

    By the names that every version since 2 reads. A module with weights of its own is left out. A
    length limit is kept unless the source had fewer positions than this model: its limit was then
    theirs.

    Args:
        width: of a vector.
        most: tokens that the model takes.
        source: as `run_log.origin_folder` returns it.
    """
    stated = source.get("modules", ())
    stated = stated if "Transformer" in stated else SENTENCE_MODULES[:2]
    kinds = [kind for kind in stated if kind in SENTENCE_MODULES]
    paths = {kind: f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]
    files: dict[str, Any] = {"modules.json": modules}
    if "Pooling" in paths:
        pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
        pooling |= dict.fromkeys(("pooling_mode_cls_token", "pooling_mode_max_tokens"), False)
        files[f"{paths['Pooling']}/config.json"] = source.get("Pooling", pooling)
    positions = source.get("config", {}).get("max_position_embeddings") or most
    if (limits := source.get("Transformer")) and most <= positions:
        kept = {k: limits[k] for k in ("max_seq_length", "do_lower_case") if k in limits}
        files["sentence_bert_config.json"] = kept
    if prompts := source.get("prompts"):
        files["config_sentence_transformers.json"] = prompts
    return files


def _code(name: str) -> bytes:
    """Return the text of a file that goes beside the weights: it imports nothing of bigbird-ja."""
    package = "model" if name == "pattern.py" else "export"
    text = (importlib.resources.files("bigbird_ja") / package / name).read_text("utf-8")
    text = text.replace("from bigbird_ja.model.pattern import", "from .pattern import")
    # Other imports from bigbird-ja name types only.
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("from bigbird_ja.")).encode()


def _write(directory: str, name: str, data: bytes) -> None:
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


# A SavedModel needs no code of ours. The encoder is the trainer's own, which needs static shapes:
# the graph has a branch for each of some lengths. Rows of a batch are padded to a branch's length
# and encoded in it one by one. Nothing attends to padding; beyond the lengths of full attention the
# branch's length decides which random blocks are seen, as in training.
_IDS = tf.TensorSpec([None, None], tf.int32)
_SHORTEST = 64  # tokens of the shortest branch


def fill_saved_model(directory: str, trained: TrainedModel) -> None:
    """Write the SavedModel and its tokenizer into an empty local directory."""
    model = ServedModel(inference_config(trained.config), trained.data, trained.params)
    filling = dict.fromkeys(("serving_default", "fill_mask"), model.fill_mask)
    tf.saved_model.save(model, directory, signatures={**filling, "embed": model.embed})
    _write(directory, "assets.extra/tokenizer.model", trained.tokenizer.model_bytes)


class ServedModel(tf.Module):
    """Runs one checkpoint with free shapes, in float32."""

    def __init__(self, config: Config, data: Data, params: dict[str, np.ndarray]) -> None:
        """Take the parameters as variables."""
        super().__init__()
        self._config, self._data = config, data
        self._params = {
            name: tf.Variable(value, trainable=False, name=name) for name, value in params.items()
        }

    @tf.function(input_signature=[_IDS, _IDS])
    def embed(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return embeddings of ids int32 [b, n], padded: `embeddings` float32 [b, n, hidden]."""
        return {"embeddings": self._encode(input_ids, segment_ids)}

    @tf.function(input_signature=[_IDS, _IDS, _IDS])
    def fill_mask(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return embeddings of ids int32 [b, n] and log-probabilities at positions int32 [b, p].

        `embeddings` float32 [b, n, hidden]; `log_probabilities` float32 [b, p, vocabulary].
        """
        hidden = self._encode(input_ids, segment_ids)
        rows = tf.reshape(
            tf.gather(hidden, positions, batch_dims=1), [1, -1, self._config.model.hidden_size]
        )
        scores = tf.nn.log_softmax(masked_lm_logits(self._params, self._config, rows))
        shape = tf.concat([tf.shape(positions), tf.shape(scores)[2:]], axis=0)
        return {"embeddings": hidden, "log_probabilities": tf.reshape(scores, shape)}

    @tf.function  # traced once for both signatures
    def _encode(self, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        lengths = branch_lengths(self._config)
        given = tf.shape(input_ids)[1]
        message = "more tokens than the model takes"
        check = tf.debugging.assert_less_equal(given, lengths[-1], message=message)
        with tf.control_dependencies([check]):
            index = tf.searchsorted(tf.constant(lengths), given[None])[0]
        branches = [partial(self._encode_at, length, input_ids, segment_ids) for length in lengths]
        return tf.switch_case(index, branches)

    def _encode_at(self, length: int, input_ids: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        given = tf.shape(input_ids)[1]
        padding = [[0, 0], [0, length - given]]
        rows = (
            tf.pad(input_ids, padding, constant_values=self._data.pad_id),
            tf.pad(segment_ids, padding),
        )

        def encode_row(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            ids, segments = (tf.ensure_shape(part, [length])[None] for part in row)
            return encode(self._params, self._config, self._data, ids, segments)[0]

        width = self._config.model.hidden_size
        signature = tf.TensorSpec([length, width], tf.float32)
        return tf.map_fn(encode_row, rows, fn_output_signature=signature)[:, :given]


def branch_lengths(config: Config) -> list[int]:
    """Return the lengths that have a branch: doubling, up to the longest that the model takes."""
    model = config.model
    most = model.max_position_embeddings
    assert most is not None
    full = pattern.shortest_sparse(model) - 1 if pattern.is_sparse(model) else most
    sparse = pattern.padded_length(model, full + 1)
    lengths = {min(full, most), most}
    for shortest, longest in ((_SHORTEST, min(full, most)), (sparse, most)):
        while shortest < longest:
            lengths.add(shortest)
            shortest *= 2
    return sorted(lengths)
