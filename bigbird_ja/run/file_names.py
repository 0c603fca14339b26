"""Names of a checkpoint's variables: parameters, AdamW's two slots of each, the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

STEP = "global_step"
SLOTS = ("m", "v")  # running means of gradients and of their squares


def slot_name(parameter: str, slot: str) -> str:
    """The variable that holds one of a parameter's slots."""
    return f"{parameter}/adam_{slot}"


def variable_names(parameters: Iterable[str]) -> list[str]:
    """Every variable of a checkpoint, in its order."""
    names = list(parameters)
    return [*names, *(slot_name(name, slot) for slot in SLOTS for name in names), STEP]


def parameters_of(variables: Mapping[str, T]) -> dict[str, T]:
    """The parameters among a checkpoint's variables."""
    endings = tuple(slot_name("", slot) for slot in SLOTS)
    return {
        name: value
        for name, value in variables.items()
        if name != STEP and not name.endswith(endings)
    }
