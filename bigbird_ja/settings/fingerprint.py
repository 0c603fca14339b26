"""What must stay the same between restarts of one run, as one hash.

A value at its default does not count, so that a new option leaves the fingerprints of earlier runs
as they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import flatten

# The seed; and the change of length, at which the position table is made from its first rows.
_OF_THE_WHOLE_RUN = (
    "training.seed",
    "training.first_seq_length",
    "training.first_seq_length_steps",
)


def fingerprint(config: Config) -> str:
    """SHA-256 (hex) of all that must not change between restarts of one run."""
    counted = {
        key: value
        for key, value in flatten(config).items()
        if not is_free(key) and value != OPTIONS[key].default
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
    """Whether a resumed run may have another value of this setting."""
    option = OPTIONS[key]
    makes_data = option.section in ("tokenize", "make_data") and not option.fixed_by_data
    return option.changeable or makes_data


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
