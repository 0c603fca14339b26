"""Reads the text of an optimised HLO module: computations, instructions, shapes, costs.

Only what the cost count needs: for each instruction its opcode, output shapes with layouts, the
computations it calls, the TensorFlow op that it came from, and the compiler's annotations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# The compiler writes values above this where it has no estimate.
UNKNOWN_CYCLES = 1e11

_BYTES = {
    "pred": 1, "s4": 1, "u4": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
_HEAD = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_END = re.compile(r"^\}(, execution_thread=\"[^\"]*\")?\s*$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"(?:branch|called)_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_BODY = re.compile(r"body=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_INTEGER = re.compile(r"\((-?\d+)\)")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True)
class Shape:
    """One array: element type, dimensions, and the order of dimensions from minor to major."""

    kind: str
    dimensions: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    in_hbm: bool = True  # False: in a memory of the core's own, `S(n)` in its layout

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def padded_bytes(self) -> int:
        """Bytes with the minor dimension padded to 128 and the second minor to 8."""
        sizes = [self.dimensions[d] for d in self.minor_to_major]
        for place, multiple in ((0, 128), (1, 8)):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // multiple) * multiple
        return math.prod(sizes) * _BYTES.get(self.kind, 0)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # of the output; several for a tuple
    operands: tuple[str, ...]
    called: tuple[str, ...]  # computations: of a fusion, a while's body and condition, branches
    body: str | None  # of a while
    estimated_cycles: int | None  # None: no estimate, or the mark for unknown
    condition: str | None  # of a while
    constant: int | None  # the value of an integer scalar constant
    tuple_index: int | None  # of a get-tuple-element
    direction: str  # of a compare: LT, LE, ...; else ""
    op_name: str  # of the TensorFlow op; "" where the compiler made the instruction
    type_text: str = ""  # shapes, layouts and memories of the output
    text: str = field(repr=False, default="")

    @property
    def padded_bytes(self) -> int:
        return sum(shape.padded_bytes for shape in self.shapes)


@dataclass
class Module:
    """Computations by name, and the name of the one that runs."""

    entry: str
    computations: dict[str, list[Instruction]]


def parse(text: str) -> Module:
    """Parses a module's text. An instruction may take several lines, as JAX's own kernels do.

    Raises:
        ValueError: the text has no ENTRY computation.
    """
    computations: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            match = _COMPUTATION.match(line)
            if match:
                current = computations.setdefault(match[2], [])
                entry = match[2] if match[1] else entry
        elif _END.match(line):
            current = None
        elif _HEAD.match(line):
            current.append(line)
        elif current:
            current[-1] += f" {line.strip()}"
    if not entry:
        raise ValueError("HLO text without an ENTRY computation")
    parsed = {name: map(parse_instruction, lines) for name, lines in computations.items()}
    return Module(entry, {name: [op for op in ops if op] for name, ops in parsed.items()})


def parse_instruction(line: str) -> Instruction | None:
    """Parses one line; None where it is not an instruction."""
    head = _HEAD.match(line)
    if not head:
        return None
    type_text, call = _split_type(line[head.end() :])
    opcode = _OPCODE.match(call)
    if not opcode:
        return None
    operands, attributes = _split_parenthesis(call[opcode.end() - 1 :])
    cycles = _integer(_CYCLES, attributes)
    is_scalar = opcode[1] == "constant" and _INTEGER.fullmatch(operands)
    return Instruction(
        name=head[2],
        opcode=opcode[1],
        shapes=tuple(_shapes(type_text)),
        operands=tuple(_OPERAND.findall(operands)),
        called=tuple(_called(attributes)),
        body=_text(_BODY, attributes) or None,
        estimated_cycles=None if cycles is None or cycles > UNKNOWN_CYCLES else cycles,
        condition=_text(_CONDITION, attributes) or None,
        constant=_integer(_INTEGER, operands) if is_scalar else None,
        tuple_index=_integer(_INDEX, attributes),
        direction=_text(_DIRECTION, attributes),
        op_name=_text(_OP_NAME, attributes),
        type_text=type_text,
        text=line.strip(),
    )


def _text(pattern: re.Pattern[str], attributes: str) -> str:
    match = pattern.search(attributes)
    return match[1] if match else ""


def _integer(pattern: re.Pattern[str], attributes: str) -> int | None:
    match = pattern.search(attributes)
    return int(match[1]) if match else None


def _called(attributes: str) -> Iterator[str]:
    yield from _CALLED.findall(attributes)
    branches = _BRANCHES.search(attributes)
    if branches:
        yield from _OPERAND.findall(branches[1])


def _split_type(text: str) -> tuple[str, str]:
    """The type at the start of `text` and what follows it."""
    if text.startswith("("):
        return _split_parenthesis(text)
    kind, _, remainder = text.partition(" ")
    return kind, remainder


def _split_parenthesis(text: str) -> tuple[str, str]:
    """`text` starts with "(": what stands up to its partner, and what follows."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: place + 1], text[place + 1 :]
    return text, ""


def _shapes(text: str) -> Iterator[Shape]:
    for kind, sizes, order, layout in _SHAPE.findall(text):
        if kind not in _BYTES:
            continue
        dimensions = tuple(int(n) for n in sizes.split(",") if n)
        minor_to_major = tuple(int(n) for n in order.split(",") if n)
        if len(minor_to_major) != len(dimensions):
            minor_to_major = tuple(reversed(range(len(dimensions))))
        yield Shape(kind, dimensions, minor_to_major, "S(" not in layout)
