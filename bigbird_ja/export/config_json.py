"""`config.json` of an exported model, in a form that transformers 4 and 5 read."""

from collections.abc import Mapping
from typing import Any

from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.huggingface.state_dict import SETTINGS
from bigbird_ja.model import pattern
from bigbird_ja.model.params import SEGMENTS
from bigbird_ja.model_dir.model import TrainedModel
from bigbird_ja.storage import decode

# Module of the exported model class. transformers' own class cannot be used, as it replaces all
# random blocks by block 0.
CODE = "modeling_bigbird_ja"
_TASKS = (
    "PreTraining", "MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice",
    "QuestionAnswering",
)  # fmt: skip

# Settings of `model` that config.json contains under the key `bigbird_ja`, since transformers'
# configs lack them. `modeling_bigbird_ja` reads random_pattern and pattern_seed.
_OURS = ("architecture", "random_pattern", "pattern_seed", "attend_across_documents")
# Keys of config.json whose values are copied from settings of `model`.
_KEYS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "initializer_range",
)  # fmt: skip
_STOCK_KEYS = ("hidden_act", "layer_norm_eps")
_BIGBIRD_KEYS = (*_STOCK_KEYS, "hidden_dropout_prob")
_BLOCK_KEYS = ("block_size", "num_random_blocks")
# Keys of the source's config.json that describe the source's files, so they are not copied.
_OF_FILES = ("_name_or_path", "auto_map", "dtype", "tokenizer_class", "transformers_version")
_MODERNBERT_KEYS = (
    "hidden_activation", "mlp_dropout", "norm_eps", "local_attention",
    "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta",
)  # fmt: skip


def make_model_config(trained: TrainedModel, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `config.json`, in a form that transformers 4 and 5 read.

    The file describes a BigBird or a ModernBERT, with one exception. If the run started from a
    BERT, RoBERTa or XLM-RoBERTa, and this class computes the same as the trained model, the file
    describes a model of this class.

    Args:
        trained: trained model of a run.
        source: description of the Hugging Face folder that the run started from, or {}.
    """
    special, model = trained.tokenizer.special, trained.config.model
    stated = source.get("config", {})
    stock = hf_config.find_stock_class(stated.get("model_type"), model, trained.data.nsp)
    keys: tuple[str, ...]
    if model.architecture == "modernbert":
        keys, others = _MODERNBERT_KEYS, _make_modernbert_config(trained)
    elif stock is not None:
        keys, others = _STOCK_KEYS, _make_stock_config(stock, stated)
    else:
        blocks = _BLOCK_KEYS if pattern.is_sparse(model) else ()
        keys, others = (*_BIGBIRD_KEYS, *blocks), _make_bigbird_config(trained)
    # Token ids in the source's config.json take precedence over those in `special`. The ids may
    # differ, since cls and sep in `special` are the tokens that the tokenizer adds around a text.
    special_ids = {
        f"{p}_token_id": getattr(special, p) for p in ("pad", "bos", "eos", "cls", "sep")
    }
    config = {
        **others,
        **{key: getattr(model, SETTINGS.get(key, key)) for key in (*_KEYS, *keys)},
        **{key: stated.get(key, value) for key, value in special_ids.items()},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bigbird_ja": {
            "format_version": decode.FORMAT_VERSION,
            "step": trained.meta.step,
            **{name: getattr(model, name) for name in _OURS if hasattr(model, name)},
        },
    }
    if stated.get("model_type") in hf_config.ROBERTAS and stock is not None:
        # In a RoBERTa, the first token has the position pad + 1.
        config["max_position_embeddings"] += special.pad + 1
    return config


def _make_stock_config(stock: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Adapt the config.json of the folder that the run started from to the class `stock`.

    Keys that describe the folder's files are removed, and the class and the number of segments are
    set to those of the exported model.
    """
    kept = {key: value for key, value in stated.items() if key not in _OF_FILES}
    segments = min(int(stated.get("type_vocab_size", SEGMENTS)), SEGMENTS)
    return {**kept, "architectures": [stock], "type_vocab_size": segments}


def _make_modernbert_config(trained: TrainedModel) -> dict[str, Any]:
    model = trained.config.model
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "classifier_activation": model.hidden_act,
        "embedding_dropout": model.hidden_dropout_prob,
        "attention_dropout": 0.0,
    }


def _make_bigbird_config(trained: TrainedModel) -> dict[str, Any]:
    is_full = pattern.is_full_throughout(trained.config.model)
    code = {
        "AutoModel": f"{CODE}.BigBirdJaModel",
        **{f"AutoModelFor{task}": f"{CODE}.BigBirdJaFor{task}" for task in _TASKS},
    }
    return {
        "architectures": ["BigBirdForPreTraining" if trained.data.nsp else "BigBirdForMaskedLM"],
        "model_type": "big_bird",
        **({} if is_full else {"auto_map": code}),
        # The trained model has no dropout of attention probabilities. Hugging Face's default would
        # add it in fine-tuning.
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": SEGMENTS,
        "attention_type": "original_full" if is_full else "block_sparse",
        "use_bias": True,
        "rescale_embeddings": False,
    }
