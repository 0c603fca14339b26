"""A folder that `AutoTokenizer`, `AutoModelForMaskedLM` and `pipeline("fill-mask")` load."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from bigbird_ja.evaluation.trained_model import OURS, TrainedModel, to_config_json
from bigbird_ja.export import hf_tokenizer, model_card, parity
from bigbird_ja.export.model_card import Options
from bigbird_ja.model import pattern
from bigbird_ja.model.hf_names import to_hugging_face
from bigbird_ja.model.params import SEGMENTS

# transformers' class replaces random blocks by block 0; this one follows the recorded plan.
_CODE = "modeling_bigbird_ja"
_CODE_FILES = (f"{_CODE}.py", "pattern.py")
_TASKS = (
    "ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
    "ForMultipleChoice", "ForQuestionAnswering",
)  # fmt: skip


def model_config(trained: TrainedModel) -> dict[str, Any]:
    """`config.json`: a `BigBirdConfig`, or a `ModernBertConfig` as transformers 4 and 5 read it."""
    special, model = trained.tokenizer.special, trained.config.model
    is_modernbert = model.architecture == "modernbert"
    return {
        **(_modernbert_config(trained) if is_modernbert else _bigbird_config(trained)),
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "initializer_range": model.initializer_range,
        "tie_word_embeddings": True,
        "pad_token_id": special.pad,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
        "cls_token_id": special.cls,
        "sep_token_id": special.sep,
        "torch_dtype": "float32",
        OURS: to_config_json(trained),
    }


def _modernbert_config(trained: TrainedModel) -> dict[str, Any]:
    model = trained.config.model
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "hidden_activation": model.hidden_act,
        "classifier_activation": model.hidden_act,
        "embedding_dropout": model.hidden_dropout_prob,
        "mlp_dropout": model.hidden_dropout_prob,
        "attention_dropout": 0.0,
        "norm_eps": model.layer_norm_eps,
        "local_attention": model.local_attention,
        "global_attn_every_n_layers": model.global_attn_every_n_layers,
        "global_rope_theta": model.global_rope_theta,
        "local_rope_theta": model.local_rope_theta,
    }


def _bigbird_config(trained: TrainedModel) -> dict[str, Any]:
    model = trained.config.model
    return {
        "architectures": [
            "BigBirdForPreTraining" if trained.config.make_data.nsp else "BigBirdForMaskedLM"
        ],
        "model_type": "big_bird",
        "auto_map": {
            "AutoModel": f"{_CODE}.BigBirdJaModel",
            **{f"AutoModel{task}": f"{_CODE}.BigBirdJa{task}" for task in _TASKS},
        },
        "hidden_act": model.hidden_act,
        "hidden_dropout_prob": model.hidden_dropout_prob,
        # Ours drops nothing there; Hugging Face's would, in fine-tuning.
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": SEGMENTS,
        "layer_norm_eps": model.layer_norm_eps,
        "attention_type": "block_sparse" if pattern.is_sparse(model) else "original_full",
        "block_size": model.block_size,
        "num_random_blocks": model.num_random_blocks,
        "use_bias": True,
        "rescale_embeddings": False,
    }


def fill(directory: str, model: TrainedModel, options: Options) -> dict[str, Any]:
    """Writes the folder's files into an empty local directory.

    Returns:
        The parity report.
    """
    from safetensors.numpy import save_file

    most = model.config.model.max_position_embeddings or 0
    for name, data in hf_tokenizer.files(model.tokenizer, most).items():
        _write(directory, name, data)
    _write(directory, "config.json", _json(model_config(model)))
    if model.config.model.architecture == "bigbird":
        for name in _CODE_FILES:
            _write(directory, name, _code(name))
    path = os.path.join(directory, "model.safetensors")
    save_file(to_hugging_face(model.config.model, model.params), path, metadata={"format": "pt"})
    # safetensors makes a file that only its owner reads.
    shutil.copymode(os.path.join(directory, "config.json"), path)
    report = parity.compare(directory, model, options)
    _write(directory, "parity_report.json", _json(report))
    _write(directory, "parity_report.md", parity.as_markdown(report).encode())
    _write(directory, "README.md", model_card.text(model, options, report).encode())
    return report


def _code(name: str) -> bytes:
    """The text of a file that goes beside the weights: of bigbird-ja it imports nothing."""
    with open(os.path.join(os.path.dirname(pattern.__file__), name), encoding="utf-8") as file:
        lines = file.readlines()
    # What is imported from bigbird-ja names types only.
    return "".join(line for line in lines if not line.startswith("from bigbird_ja.")).encode()


def _write(directory: str, name: str, data: bytes) -> None:
    with open(os.path.join(directory, name), "wb") as file:
        file.write(data)


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
