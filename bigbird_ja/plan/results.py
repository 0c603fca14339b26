"""Reads results of `preflight --output`."""

from dataclasses import dataclass, field
from typing import Annotated, TypedDict

from msgspec import Meta

from bigbird_ja.process.errors import BadInput
from bigbird_ja.storage import decode

Rate = Annotated[float, Meta(gt=0, le=1e15)]  # tokens per second
Cycles = Annotated[float, Meta(ge=0, le=1e18)]  # of one step


class Step(TypedDict, total=False):
    """Names what is read of a compiled step; a rate is None where the step does not fit."""

    priced_cycles: Cycles | None  # the rates are computed from these
    code_cycles: Cycles | None  # by machine code, where there is any
    code_coverage: Annotated[float, Meta(ge=0, le=1)] | None  # the share of it that is counted
    fits: bool
    seq_length: Annotated[int, Meta(ge=1, le=1 << 30)]


class ChipResult(Step):
    """Names what is read of the step on one chip."""

    chip: str
    tokens_per_second_per_core: Rate | None


class SliceResult(Step):
    """Names what is read of the step on a whole slice."""

    topology: Annotated[str, Meta(pattern=r"^[a-z0-9]+:\d{1,4}(x\d{1,4}){1,2}\Z")]
    tokens_per_second: Rate | None


@dataclass(frozen=True)
class Results:
    """Holds what is read of a file of `preflight --output`."""

    chips: list[ChipResult]
    topologies: list[SliceResult] = field(default_factory=list)


def load_results(path: str) -> Results:
    """Read a file of `preflight --output`.

    Raises:
        BadInput: no such file, or not a result of `preflight --output`.
    """
    advice = "not a result of `bigbird-ja preflight --output`"
    try:
        return decode.read_json(path, Results, advice)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file: `bigbird-ja preflight --output {path}`") from error
