"""Parser of an optimized HLO module's text: computations, instructions, shapes.

It parses text because jaxlib cannot build the `HloModuleProto` of a program for v6e's SparseCores
(see `compile.read_optimized`), and libtpu lists such a program only as text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

# Maximum of `estimated_cycles`. The compiler writes a larger value if it does not know the cycles.
UNKNOWN_CYCLES = 1e11

_BYTES = dict.fromkeys(("pred", "s4", "u4", "s8", "u8"), 1)
_BYTES |= dict.fromkeys(("s16", "u16", "bf16", "f16"), 2)
_BYTES |= dict.fromkeys(("s32", "u32", "f32"), 4) | dict.fromkeys(("s64", "u64", "f64", "c64"), 8)
_BYTES["c128"] = 16
_HEAD = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_END = re.compile(r"^\}(, execution_thread=\"[^\"]*\")?\s*$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|\w+_computations?)=(%?[\w.\-]+|\{[^}]*\})"
)
_VALUE = r'(?:%?([\w.\->]+)|\{([^}]*)\}|"([^"]*)")'
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NUMBER = re.compile(r"\((-?\d+)\)")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True)
class Shape:
    """Element type, dimensions and layout of an array.

    Attributes:
        kind: Element type in HLO, such as "bf16".
        dimensions: Sizes in logical order.
        minor_to_major: Layout, as indices of `dimensions` from minor to major.
        in_hbm: Whether the array is in HBM. Otherwise it is in the core's own memory, and its
            layout contains `S(1)` or another number of a memory space.
    """

    kind: str
    dimensions: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    in_hbm: bool = True

    @property
    def elements(self) -> int:
        """Number of elements, without padding."""
        return math.prod(self.dimensions)

    @property
    def padded_bytes(self) -> int:
        """Bytes with padding.

        The minor dimension is padded to a multiple of 128, the second minor one to a multiple of 8.
        """
        sizes = [self.dimensions[d] for d in self.minor_to_major]
        for place, multiple in ((0, 128), (1, 8)):
            if place < len(sizes):
                sizes[place] = -(-sizes[place] // multiple) * multiple
        return math.prod(sizes) * _BYTES[self.kind]


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction of a computation.

    Attributes:
        name: Unique name within the module.
        opcode: Opcode; "" for an operand that the text does not define.
        shapes: Shapes of the output; several for a tuple.
        operands: Instructions whose outputs this instruction reads.
        called: Computations that this instruction calls.
        number: Index of a parameter, or value of an integer scalar constant.
        type_text: Text of the output's type, with shapes and layouts.
        attributes: Text of the attributes, which follow the operands.
        text: Complete text of the instruction.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...] = ()
    operands: tuple[Instruction, ...] = field(default=(), repr=False)
    called: tuple[Computation, ...] = field(default=(), repr=False)
    number: int | None = None
    type_text: str = ""
    attributes: str = field(repr=False, default="")
    text: str = field(repr=False, default="")

    @property
    def padded_bytes(self) -> int:
        """Padded bytes of the output."""
        return sum(shape.padded_bytes for shape in self.shapes)

    @property
    def inside(self) -> list[Instruction]:
        """Instructions of the computations that this instruction calls."""
        return [inner for computation in self.called for inner in computation.instructions]

    @cached_property
    def estimated_cycles(self) -> int | None:
        """Cycles of one run by the compiler's estimate, or None if there is no valid estimate."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match and int(match[1]) <= UNKNOWN_CYCLES else None

    @cached_property
    def op_name(self) -> str:
        """Name of the op in TensorFlow or JAX, or "" if the compiler added the instruction."""
        return self.get_attribute("op_name")

    def get_attribute(self, name: str) -> str:
        """Return the value of `name=...` without quotes or braces, or "" if it is missing."""
        match = re.search(rf"\b{name}={_VALUE}", self.attributes)
        return match[match.lastindex or 0] if match else ""

    def list_called(self, name: str) -> list[Instruction]:
        """List the instructions of the computation that attribute `name` (e.g. "body") names."""
        wanted = self.get_attribute(name)
        return [op for one in self.called if one.name == wanted for op in one.instructions]


@dataclass(frozen=True, eq=False)
class Computation:
    """Instructions in the order in which they run."""

    name: str
    instructions: list[Instruction]


@dataclass(frozen=True)
class Module:
    """All computations of a module, and its entry computation."""

    entry: Computation
    computations: Mapping[str, Computation]


def parse(text: str) -> Module:
    """Parse a module's text, in which computations and operands precede their users.

    An instruction may span several lines, as the call of a Pallas kernel does.

    Raises:
        ValueError: The text has no ENTRY computation.
    """
    blocks: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            match = _COMPUTATION.match(line)
            if match:
                current = blocks.setdefault(match[2], [])
                entry = match[2] if match[1] else entry
        elif _END.match(line):
            current = None
        elif _HEAD.match(line):
            current.append(line)
        elif current:
            current[-1] += f" {line.strip()}"
    if not entry:
        raise ValueError("HLO text without an ENTRY computation")
    computations: dict[str, Computation] = {}
    for name, lines in blocks.items():
        computations[name] = Computation(name, parse_lines(lines, computations))
    return Module(computations[entry], computations)


def parse_lines(lines: list[str], known: Mapping[str, Computation]) -> list[Instruction]:
    """Parse the instructions of a computation, and skip other lines.

    Args:
        lines: Lines of the computation.
        known: Computations that the instructions may call, by name.
    """
    named: dict[str, Instruction] = {}
    for line in lines:
        head = _HEAD.match(line)
        type_text, call = _split_type(line[head.end() :]) if head else ("", "")
        opcode = _OPCODE.match(call)
        if not head or not opcode:
            continue
        operands, attributes = _split_parenthesis(call[opcode.end() - 1 :])
        number = _NUMBER.fullmatch(operands)
        called = re.findall(r"[\w.\-]+", " ".join(_CALLED.findall(attributes)))
        named[head[2]] = Instruction(
            name=head[2],
            opcode=opcode[1],
            shapes=tuple(_parse_shapes(type_text)),
            operands=tuple(named.get(n) or Instruction(n, "") for n in _OPERAND.findall(operands)),
            called=tuple(known[n] for n in called if n in known),
            number=int(number[1]) if number else None,
            type_text=type_text,
            attributes=attributes,
            text=line.strip(),
        )
    return list(named.values())


def _split_type(text: str) -> tuple[str, str]:
    """Split `text` into the type at its start and the remaining text."""
    if text.startswith("("):
        return _split_parenthesis(text)
    kind, _, after = text.partition(" ")
    return kind, after


def _split_parenthesis(text: str) -> tuple[str, str]:
    """Split `text`, which starts with "(", after the matching ")"."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: place + 1], text[place + 1 :]
    return text, ""


def _parse_shapes(text: str) -> Iterator[Shape]:
    for kind, sizes, order, layout in _SHAPE.findall(text):
        if kind not in _BYTES:
            continue
        dimensions = tuple(int(n) for n in sizes.split(",") if n)
        minor_to_major = tuple(int(n) for n in order.split(",") if n)
        if len(minor_to_major) != len(dimensions):
            minor_to_major = tuple(reversed(range(len(dimensions))))
        yield Shape(kind, dimensions, minor_to_major, "S(" not in layout)
