"""Results of `preflight` as a file, for `plan` and for people. Needs neither TensorFlow nor jax."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bigbird_ja import typed
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import outputs

is_ours = outputs.is_json_with("chips", "config_fingerprint")


class _Chip(TypedDict):
    chip: str


class ChipResult(_Chip, total=False):
    """What of a chip's result `plan` reads; some keys are absent where the program does not fit."""

    fits: bool
    seq_length: Annotated[int, Meta(ge=1, le=1 << 30)]
    batch_per_core: Annotated[int, Meta(ge=1, le=1 << 30)]
    tokens_per_second_per_core: Annotated[float, Meta(gt=0, le=1e15)] | None


@dataclass(frozen=True)
class _Results:
    chips: list[ChipResult]


def save(path: str, result: dict[str, Any]) -> None:
    """Writes what `preflight --json` prints."""
    outputs.write(path, json.dumps(result, indent=1).encode())


def load(path: str) -> list[ChipResult]:
    """The chips of a result.

    Raises:
        BadInput: no such file, or not a result of `preflight --output`.
    """
    try:
        advice = "not a result of `bigbird-ja preflight --output`"
        chips = typed.read_json(path, _Results, advice).chips
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file: `bigbird-ja preflight --output {path}`") from error
    for chip in chips:
        if chip.get("fits") and chip.get("tokens_per_second_per_core") is None:
            raise BadInput(f"{path}: no tokens_per_second_per_core of {chip['chip']}: {advice}")
    return chips
