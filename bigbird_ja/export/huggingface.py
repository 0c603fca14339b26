"""Writes a folder that `AutoTokenizer`, `AutoModelForMaskedLM` and `pipeline("fill-mask")` load."""

import importlib.resources
import os
import shutil
from typing import Any

import numpy as np

from bigbird_ja.evaluation.trained_model import OURS, TrainedModel, to_config_json
from bigbird_ja.export import hf_tokenizer, model_card, parity
from bigbird_ja.export.model_card import Options
from bigbird_ja.model import pattern
from bigbird_ja.model.params import SEGMENTS
from bigbird_ja.model.state_dict import SETTINGS, to_hugging_face
from bigbird_ja.settings.schema import ModelConfig

# transformers' class replaces random blocks by block 0; this one follows the recorded plan.
_CODE = "modeling_bigbird_ja"
_CODE_FILES = (f"{_CODE}.py", "pattern.py")
_TASKS = (
    "PreTraining MaskedLM SequenceClassification TokenClassification MultipleChoice"
    " QuestionAnswering"
)

# Keys of config.json that are settings of `model`.
_KEYS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size"
    " max_position_embeddings initializer_range"
)
_BIGBIRD_KEYS = "hidden_act hidden_dropout_prob layer_norm_eps block_size num_random_blocks"
_MODERNBERT_KEYS = (
    "hidden_activation mlp_dropout norm_eps local_attention global_attn_every_n_layers"
    " global_rope_theta local_rope_theta"
)


def model_config(trained: TrainedModel) -> dict[str, Any]:
    """Return `config.json`, as transformers 4 and 5 read it.

    It is a `BigBirdConfig` or a `ModernBertConfig`.
    """
    special, model = trained.tokenizer.special, trained.config.model
    if model.architecture == "modernbert":
        keys, others = _MODERNBERT_KEYS, _modernbert_config(trained)
    else:
        keys, others = _BIGBIRD_KEYS, _bigbird_config(trained)
    return {
        **others,
        **{key: getattr(model, SETTINGS.get(key, key)) for key in f"{_KEYS} {keys}".split()},
        **{
            f"{part}_token_id": getattr(special, part)
            for part in ("pad", "bos", "eos", "cls", "sep")
        },
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        OURS: to_config_json(trained),
    }


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
    return {
        "architectures": ["BigBirdForPreTraining" if trained.data.nsp else "BigBirdForMaskedLM"],
        "model_type": "big_bird",
        "auto_map": {
            "AutoModel": f"{_CODE}.BigBirdJaModel",
            **{f"AutoModelFor{task}": f"{_CODE}.BigBirdJaFor{task}" for task in _TASKS.split()},
        },
        # Ours drops nothing there; Hugging Face's would, in fine-tuning.
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": SEGMENTS,
        "attention_type": (
            "block_sparse" if pattern.is_sparse(trained.config.model) else "original_full"
        ),
        "use_bias": True,
        "rescale_embeddings": False,
    }


def fill(directory: str, model: TrainedModel, options: Options) -> dict[str, Any]:
    """Write the folder's files into an empty local directory.

    Returns:
        The parity report.
    """
    from safetensors.numpy import save_file

    most = model.config.model.max_position_embeddings or 0
    for name, data in hf_tokenizer.files(model.tokenizer, most).items():
        _write(directory, name, data)
    _write(directory, "config.json", hf_tokenizer.to_json(model_config(model)))
    if model.config.model.architecture == "bigbird":
        for name in _CODE_FILES:
            _write(directory, name, _code(name))
    state = to_hugging_face(model.config.model, model.params)
    if model.config.model.architecture == "bigbird":
        state = {**_untrained_pooler(model.config.model), **state}
    path = os.path.join(directory, "model.safetensors")
    save_file(state, path, metadata={"format": "pt"})
    # safetensors makes a file that only its owner reads.
    shutil.copymode(os.path.join(directory, "config.json"), path)
    report = parity.compare(directory, model, options)
    _write(directory, "parity_report.json", hf_tokenizer.to_json(report))
    _write(directory, "parity_report.md", parity.as_markdown(report).encode())
    _write(directory, "README.md", model_card.text(model, options, report).encode())
    return report


def _untrained_pooler(model: ModelConfig) -> dict[str, np.ndarray]:
    """Return a random pooler, for transformers' classes of BigBird, which all have one.

    They warn where it is missing, though only next-sentence prediction trains it.
    """
    size = model.hidden_size
    weight = np.random.default_rng(0).normal(0, model.initializer_range, (size, size))
    return {
        "bert.pooler.weight": weight.astype(np.float32),
        "bert.pooler.bias": np.zeros(size, np.float32),
    }


def _code(name: str) -> bytes:
    """Return the text of a file that goes beside the weights: it imports nothing of bigbird-ja."""
    package = "model" if name == "pattern.py" else "export"
    text = (importlib.resources.files("bigbird_ja") / package / name).read_text("utf-8")
    text = text.replace("from bigbird_ja.model.pattern import", "from .pattern import")
    # What else is imported from bigbird-ja names types only.
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("from bigbird_ja.")).encode()


def _write(directory: str, name: str, data: bytes) -> None:
    with open(os.path.join(directory, name), "wb") as file:
        file.write(data)
