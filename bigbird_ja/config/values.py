"""Values in a config: by key, as a mapping, copied, as YAML."""

from __future__ import annotations

import copy as copying
import dataclasses
import math
from typing import Any

from bigbird_ja.config.schema import Config, MakeDataConfig


def flatten(config: Config) -> dict[str, Any]:
    """`section.key` to value, in the order of definition."""
    return {
        f"{section}.{key}": value
        for section, values in dataclasses.asdict(config).items()
        for key, value in values.items()
    }


def get(config: Config, key: str) -> Any:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def put(config: Config, key: str, value: Any) -> None:
    """Sets `section.key` in place."""
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)


def copy(config: Config) -> Config:
    """A deep copy."""
    return copying.deepcopy(config)


def to_yaml(config: Config) -> str:
    """The resolved config as YAML, as `MODEL_DIR/config.yaml` holds it."""
    import yaml

    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def predictions_of(making: MakeDataConfig) -> int:
    """Most predictions in a sequence: as stated, else what a full sequence needs for its share."""
    if making.max_predictions_per_seq is not None:
        return making.max_predictions_per_seq
    if (making.seq_length, making.masked_lm_prob) == (4096, 0.15):
        return 600  # of the run that this began with; a full sequence would need 615
    return max(1, math.ceil(round(making.seq_length * making.masked_lm_prob, 6)))
