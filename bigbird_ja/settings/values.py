"""Functions on a config: copy, comparison, fingerprint, mask rates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from bigbird_ja.settings.data_facts import PAD_ID, Data, count_masked, get_data_entries
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.variants import OPTIONS, select


def flatten(config: Config, data: Data | None = None) -> dict[str, Any]:
    """Return the values of a config by `section.key`, in the order of definition.

    With `data`, the facts of the data set replace the settings of `make-data`.
    """
    values = {
        f"{section}.{key}": value
        for section in config.__struct_fields__
        for key, value in msgspec.structs.asdict(getattr(config, section)).items()
    }
    return values | get_data_entries(data) if data else values


def replace_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a copy of a config with the new `values`, whose keys are `section.key`.

    If a value selects another class of its section, settings that this class does not contain are
    dropped.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    changed = {}
    for section, names in sections.items():
        before = msgspec.structs.asdict(getattr(config, section))
        variant = select(section, before | names)
        kept = {key: value for key, value in before.items() if key in variant.__struct_fields__}
        changed[section] = variant(**(kept | names))
    return msgspec.structs.replace(config, **changed)


def get_mask_rates(config: Config) -> tuple[float, float, int] | None:
    """Return the mask rates at the first and last step, and the number of steps.

    If training uses the data set's mask rate, return None.
    """
    training = config.training
    first, last = training.masked_lm_prob, training.final_masked_lm_prob
    if first is None:
        return None
    return first, first if last is None else last, training.num_train_steps


def count_train_predictions(config: Config, data: Data) -> int:
    """Return the maximum number of masked tokens per sequence in training."""
    rates = get_mask_rates(config)
    if rates is None:
        return data.max_predictions_per_seq
    return count_masked(data.seq_length, max(rates[:2]))


def compute_config_fingerprint(config: Config, data: Data) -> str:
    """Return the SHA-256 (hex) of a run's settings and of its data set's properties.

    Settings that a resumed run may change freely (see `get_accepted_changes`) are excluded. Default
    values are excluded, too, so that adding a setting does not change fingerprints of old runs.
    """
    counted = {
        key: value
        for key, value in flatten(config, data).items()
        if get_accepted_changes(key) != "free"
        and value != (0 if key == PAD_ID else OPTIONS[key].default)
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def list_changes(before: tuple[Config, Data], now: tuple[Config, Data]) -> dict[str, list[Any]]:
    """Return the old and new value of each changed setting, by its key.

    Settings that a resumed run may change freely are excluded. A missing value is None.
    """
    old, new = flatten(*before), flatten(*now)
    return {
        key: [old.get(key), new.get(key)]
        for key in {**old, **new}
        if old.get(key) != new.get(key) and get_accepted_changes(key) != "free"
    }


def get_accepted_changes(key: str) -> str:
    """Return "free", "logged" or "fixed": the changes that a resumed run accepts.

    `schema.about` explains the three values.
    """
    return "fixed" if key == PAD_ID else OPTIONS[key].change
