"""Inputs for tiny runs that tests kill, and a comparison of their results."""

import hashlib
import json
from typing import Any

import yaml

from bigbird_ja import storage
from bigbird_ja.storage import files
from testkit import synthetic

CONFIG: dict[str, dict[str, Any]] = {
    "model": {
        **{"hidden_size": 32, "num_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 64, "block_size": 16, "num_random_blocks": 1},
    },
    "data": {"shuffle_window": 2},
    "training": {
        **{"num_train_steps": 60, "global_batch_size": 4, "learning_rate": 0.002},
        **{"warmup_steps": 5, "dtype": "float32", "log_every_steps": 4},
    },
    "checkpoints": {
        **{"save_every_minutes": 0, "save_every_steps": 5, "keep_last": 2, "keep_every_steps": 0}
    },
}


def write_inputs(directory, seq_length=64):
    """Write a tiny config and a tiny data set, and return their paths."""
    config, data = directory / "tiny.yaml", directory / "data"
    directory.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(CONFIG))
    if not (data / "manifest.json").exists():
        synthetic.write(data, (40, 40, 40, 40), seq_length=seq_length)
        (data / "tokenizer.model").write_bytes(b"not read by training")
    return config, data


def digest(model_dir):
    """Return a hash of the newest checkpoint's step, weights and optimizer state."""
    from bigbird_ja.model_dir.checkpoints import CheckpointStore

    store = CheckpointStore(model_dir)
    meta = store.read_meta(store.list_steps()[-1])
    content = {"step": meta.step, "files": {name: vars(file) for name, file in meta.files.items()}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def interrupt_storage(patch, kill):
    """Let the first `kill` changes of files succeed, and raise KeyboardInterrupt in all later ones.

    Returns:
        A list to which the function name of each change is appended.
    """
    changes: list[str] = []

    def interrupted(name, act):
        def call(*arguments, **how):
            changes.append(name)
            if len(changes) > kill:
                raise KeyboardInterrupt
            return act(*arguments, **how)

        return call

    for name in ("rename", "replace_if", "write_bytes", "delete"):
        act = interrupted(name, getattr(files, name))
        patch.setattr(files, name, act)
        patch.setattr(storage, name, act)
    return changes
