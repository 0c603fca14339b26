"""Results of `preflight` as a file, for `plan` and for people. Needs neither TensorFlow nor jax."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode, outputs

Rate = Annotated[float, Meta(gt=0, le=1e15)]  # tokens per second
Cycles = Annotated[float, Meta(ge=0, le=1e18)]  # of one step
_ADVICE = "not a result of `bigbird-ja preflight --output`"


class PhaseResult(TypedDict, total=False):
    """What `plan` reads of the step on the first phase's short sequences, and of the step itself.

    Some keys are absent where the program does not fit.
    """

    tokens_per_second_per_core: Rate | None
    tokens_per_second: Rate | None  # of a whole slice
    priced_cycles: Cycles | None  # the rates are computed from these
    code_cycles: Cycles | None  # by machine code, where there is any
    code_coverage: Annotated[float, Meta(ge=0, le=1)] | None  # the share of it that is counted


class _Step(PhaseResult, total=False):
    fits: bool
    seq_length: Annotated[int, Meta(ge=1, le=1 << 30)]
    batch_per_core: Annotated[int, Meta(ge=1, le=1 << 30)]
    devices: Annotated[int, Meta(ge=1, le=1 << 20)]
    first_phase: PhaseResult


class ChipResult(_Step):
    """The step on one chip."""

    chip: str


class SliceResult(ChipResult):
    """The step on a whole slice."""

    topology: Annotated[str, Meta(pattern=r"^[a-z0-9]+:\d{1,4}(x\d{1,4}){1,2}\Z")]


@dataclass(frozen=True)
class Results:
    """What `plan` reads of a file of `preflight --output`."""

    chips: list[ChipResult]
    topologies: list[SliceResult] = field(default_factory=list)


def save(path: str, result: dict[str, Any]) -> None:
    """Writes what `preflight --json` prints."""
    outputs.write(path, json.dumps(result, indent=1).encode())


def load(path: str) -> Results:
    """The chips and slices of a result.

    Raises:
        BadInput: no such file, or not a result of `preflight --output`.
    """
    try:
        results = decode.read_json(path, Results, _ADVICE)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file: `bigbird-ja preflight --output {path}`") from error
    for key, name, entries in (
        ("tokens_per_second_per_core", "chip", results.chips),
        ("tokens_per_second", "topology", results.topologies),
    ):
        for entry in entries:
            if entry.get("fits") and entry.get(key) is None:
                raise BadInput(f"{path}: no {key} of {entry.get(name)}: {_ADVICE}")
    return results
