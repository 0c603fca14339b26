"""What a program needs in HBM, and what the compiler says when it does not fit."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
_REQUIRES = re.compile(rf"Requires {_SIZE}, has {_SIZE} available")
_EXCEEDS = re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_SINGLE = re.compile(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)")
_SINGLE_SHAPE = re.compile(r"shape = '([^']*)'.*?tag = '([^']*)'", re.DOTALL)
_BUFFER = re.compile(
    rf"^\s*\d+\. Size: {_SIZE}\s*\n(?:\s*Operator: op_name=\"([^\"]*)\"[^\n]*\n)?"
    r"\s*Shape: ([^\n]*)\n",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Buffer:
    """One allocation: its size, the TensorFlow op it belongs to, its shape."""

    size: int  # bytes
    op_name: str
    shape: str


@dataclass(frozen=True)
class Shortage:
    """A program that does not fit."""

    used: int  # bytes wanted; 0 where the compiler stopped before it knew
    available: int
    largest: tuple[Buffer, ...]


def is_shortage(message: str) -> bool:
    """Whether a compiler's error means that HBM is too small: not a core's vector memory, which is
    a kernel's own fault."""
    return "RESOURCE_EXHAUSTED" in message and "memory space vmem" not in message


def shortage(message: str) -> Shortage:
    """Reads the compiler's RESOURCE_EXHAUSTED message, in any of its four forms."""
    used = _USED.search(message) or _REQUIRES.search(message) or _EXCEEDS.search(message)
    largest = tuple(
        Buffer(_bytes(size, unit), op_name or "(made by the compiler)", shape)
        for size, unit, op_name, shape in _BUFFER.findall(message)
    )
    if used:
        return Shortage(_bytes(used[1], used[2]), _bytes(used[3], used[4]), largest)
    single = _SINGLE.search(message)
    if single:
        shape = _SINGLE_SHAPE.search(message)
        buffer = Buffer(int(single[1]), shape[2] if shape else "", shape[1] if shape else "")
        return Shortage(int(single[1]), int(single[2]), (buffer,))
    return Shortage(0, 0, largest)


def peak(temp: int, arguments: int, outputs: int, aliased: int) -> int:
    """Bytes of HBM at the peak: an output that reuses its argument's buffer counts once."""
    return temp + arguments + outputs - aliased


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
