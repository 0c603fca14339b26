"""Functions of a whole config: copies, comparison, fingerprint, mask rates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from bigbird_ja.settings.data_facts import PAD_ID, Data, data_entries, places_for
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.variants import OPTIONS, select


def flatten(config: Config, data: Data | None = None) -> dict[str, Any]:
    """Map each `section.key` to its value, in the order of definition.

    With `data`, the facts of the data set replace the settings of `make-data`.
    """
    values = {
        f"{section}.{key}": value
        for section in config.__struct_fields__
        for key, value in msgspec.structs.asdict(getattr(config, section)).items()
    }
    return values | data_entries(data) if data else values


def replace_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with other values of some settings, by `section.key`.

    If a value selects another class of its section, the settings that this class lacks are dropped.
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


def mask_rates(config: Config) -> tuple[float, float, int] | None:
    """Return the mask rate at step 0 and at the last step, and the number of steps.

    None if training uses the data set's rate.
    """
    training = config.training
    first, last = training.masked_lm_prob, training.final_masked_lm_prob
    if first is None:
        return None
    return first, first if last is None else last, training.num_train_steps


def train_predictions(config: Config, data: Data) -> int:
    """Return the maximum number of predictions in a sequence, at the highest mask rate."""
    rates = mask_rates(config)
    if rates is None:
        return data.max_predictions_per_seq
    return places_for(data.seq_length, max(rates[:2]))


def config_fingerprint(config: Config, data: Data) -> str:
    """Compute the SHA-256 (hex) of all that must stay the same between restarts of one run.

    A value at its default does not count, so that a new setting does not change the fingerprints of
    earlier runs.
    """
    counted = {
        key: value
        for key, value in flatten(config, data).items()
        if change_of(key) != "free" and value != (0 if key == PAD_ID else OPTIONS[key].default)
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def changes(before: tuple[Config, Data], now: tuple[Config, Data]) -> dict[str, list[Any]]:
    """Return the old and the new value of each setting whose difference is not `free`.

    A missing value is None.
    """
    old, new = flatten(*before), flatten(*now)
    return {
        key: [old.get(key), new.get(key)]
        for key in {**old, **new}
        if old.get(key) != new.get(key) and change_of(key) != "free"
    }


def change_of(key: str) -> str:
    """Return the changes of a setting or fact that a resumed run accepts: see `schema.about`."""
    return "fixed" if key == PAD_ID else OPTIONS[key].change
