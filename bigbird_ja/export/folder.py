"""Folder that `AutoTokenizer`, `AutoModelForMaskedLM` and `pipeline("fill-mask")` can load."""

import importlib.resources
import os
import shutil
from typing import Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.export import (
    config_json,
    model_card,
    parity,
    sentence_transformers,
    tokenizer_files,
)
from bigbird_ja.export.model_card import Options
from bigbird_ja.huggingface.state_dict import to_hugging_face, to_stock
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.model import TrainedModel

_CODE_FILES = (f"{config_json.CODE}.py", "pattern.py")


def fill_huggingface(directory: str, model: TrainedModel, options: Options) -> dict[str, Any]:
    """Write the files of a Hugging Face export into an empty local directory.

    Returns:
        The parity report: the comparison of the folder with the trained model.
    """
    from safetensors.numpy import save_file

    most = model.config.model.max_position_embeddings or 0
    for name, data in tokenizer_files.make_files(model.tokenizer, most).items():
        write_file(directory, name, data)
    source = run_log.find_origin_folder(run_log.find_origin(run_log.read_events(model.folder)))
    config = config_json.make_model_config(model, source)
    write_file(directory, "config.json", tokenizer_files.encode_json(config))
    width = model.config.model.hidden_size
    for name, content in sentence_transformers.make_module_files(width, most, source).items():
        write_file(directory, name, tokenizer_files.encode_json(content))
    state = to_hugging_face(model.config.model, model.params)
    if model.config.model.architecture == "bigbird":
        for name in _CODE_FILES if "auto_map" in config else ():
            write_file(directory, name, _read_code(name))
        # Only next-sentence prediction trains a pooler. But transformers' classes always contain a
        # pooler, and warn if its weights are missing.
        state.setdefault("bert.pooler.weight", np.eye(width, dtype=np.float32))
        state.setdefault("bert.pooler.bias", np.zeros(width, np.float32))
        if config["model_type"] != "big_bird":
            state = to_stock(state, config)
    path = os.path.join(directory, "model.safetensors")
    save_file(state, path, metadata={"format": "pt"})
    # safetensors creates a file that only its owner can read, so the mode of config.json is copied.
    shutil.copymode(os.path.join(directory, "config.json"), path)
    report = parity.compare(directory, model, options.manifest, options.data_dir)
    write_file(directory, "parity_report.json", tokenizer_files.encode_json(report))
    write_file(directory, "README.md", model_card.format_card(model, options, report).encode())
    return report


def _read_code(name: str) -> bytes:
    """Return the content of a Python file for the export, without imports from bigbird-ja."""
    package = "model" if name == "pattern.py" else "export"
    text = (importlib.resources.files("bigbird_ja") / package / name).read_text("utf-8")
    text = text.replace("from bigbird_ja.model.pattern import", "from .pattern import")
    # Other imports from bigbird-ja are for types only.
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("from bigbird_ja.")).encode()


def write_file(directory: str, name: str, data: bytes) -> None:
    """Write a file of an export, and create missing folders."""
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    storage.write_bytes(path, data)
