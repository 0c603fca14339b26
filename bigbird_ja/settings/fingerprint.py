"""What must stay the same between restarts of one run, as one hash.

A value at its default does not count, so that a new option leaves the fingerprints of runs and data
sets that know nothing of it as they were. The options of the first fingerprints are counted
always, default or not: those fingerprints are in checkpoints, and stay valid.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import flatten

# Options that were hashed with their defaults when the first checkpoints were written. History,
# not a description: a new option is never added here.
_ALWAYS_COUNTED = frozenset(
    f"{section}.{name}"
    for section, names in {
        "model": (
            "vocab_size hidden_size num_layers num_attention_heads intermediate_size hidden_act"
            " max_position_embeddings type_vocab_size hidden_dropout_prob initializer_range"
            " initializer layer_norm_eps attention_type block_size num_random_blocks"
            " random_pattern pattern_seed attend_across_documents"
        ),
        "data": "seq_length max_predictions_per_seq masking nsp mask_unit shuffle_window seed",
        "training": (
            "global_batch_size gradient_accumulation_steps learning_rate warmup_steps schedule"
            " decay_fraction weight_decay adam_beta1 adam_beta2 adam_epsilon clip_norm dtype"
            " gradient_checkpointing seed"
        ),
    }.items()
    for name in names.split()
)


# The seed; and the change of length, at which the position table is made from its first rows.
_OF_THE_WHOLE_RUN = (
    "training.seed",
    "training.first_seq_length",
    "training.first_seq_length_steps",
)


def fingerprint(config: Config) -> str:
    """SHA-256 (hex) of all that must not change between restarts of one run."""
    kept = {key: value for key, value in flatten(config).items() if not is_free(key)}
    defaults = {key: option.default for key, option in OPTIONS.items()}
    return digest(kept, defaults, _ALWAYS_COUNTED)


def digest(
    values: Mapping[str, Any], defaults: Mapping[str, Any], always: Collection[str] = ()
) -> str:
    """SHA-256 (hex) of the values that are in `always` or not at their default.

    Args:
        values: JSON values by name.
        defaults: what leaves a name out; a name without one always counts.
        always: names that count even at their default.
    """
    counted = {
        name: value
        for name, value in values.items()
        if name in always or name not in defaults or value != defaults[name]
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def differences(old: Config, new: Config) -> list[str]:
    """`key: old -> new` for every setting that a `model_dir` does not accept a change of."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and not is_free(key)
    ]


def may_change_in_mid_run(key: str) -> bool:
    """Whether `pretrain --continue_with` may give a run another value: what neither its state nor
    the order of its data depends on."""
    return OPTIONS[key].section == "training" and key not in _OF_THE_WHOLE_RUN


def is_free(key: str) -> bool:
    """Whether a run that goes on may have another value of this setting."""
    # The sections `tokenize` and `make_data` say how data is made; a run depends on its manifest.
    return OPTIONS[key].changeable or OPTIONS[key].section in ("tokenize", "make_data")


def check_mid_run(keys: Iterable[str]) -> None:
    """Refuses what `--continue_with` cannot change in mid run.

    Raises:
        BadInput: naming the setting, and what to do instead.
    """
    for key in keys:
        if is_free(key):
            raise BadInput(
                f"--continue_with {key}: a run accepts that at any time: give it with --set"
            )
        if not may_change_in_mid_run(key):
            raise BadInput(
                f"--continue_with {key}: only the settings of `training`, but for its seed and"
                " first sequence length, can change in mid run: start another run with --init_from"
                " and another --model_dir"
            )
