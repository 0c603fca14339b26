"""The lowered train step: serialized HLO with the names, shapes and types of its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spec:
    """One tensor: shape and the name of its numpy type."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Traced:
    """A lowered function: a serialized HLO module, and its flat inputs and outputs by name."""

    hlo: bytes
    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]


@dataclass(frozen=True)
class Division:
    """A division of a tensor over the replicas: along one dimension, into parts of equal size.

    A dimension that does not divide is filled up with zeros, which the update leaves zero.
    """

    dimension: int
    size: int  # of one part, along the dimension

    def part(self, spec: Spec) -> Spec:
        """Return the part of one replica."""
        return self._with(spec, self.size)

    def whole(self, spec: Spec, replicas: int) -> Spec:
        """Return all parts side by side."""
        return self._with(spec, self.size * replicas)

    def _with(self, spec: Spec, size: int) -> Spec:
        before, after = spec.shape[: self.dimension], spec.shape[self.dimension + 1 :]
        return Spec((*before, size, *after), spec.dtype)


def division_of(spec: Spec, replicas: int, by_rows: bool = False) -> Division:
    """Divide a tensor along the first dimension that divides, else along its longest.

    With `by_rows` along the first anyway.
    """
    sizes = list(enumerate(spec.shape))
    divides = [place for place, size in sizes if by_rows or size % replicas == 0]
    dimension = divides[0] if divides else max(sizes, key=lambda item: item[1])[0]
    return Division(dimension, -(-spec.shape[dimension] // replicas))


def gradient_name(parameter: str) -> str:
    """Name a parameter's gradient among the arguments of the step's functions."""
    return f"{parameter}/gradient"


@dataclass(frozen=True)
class LoweredStep:
    """The step of one config on some replicas; see `program` for the two functions.

    Args:
        gradients, update: of one replica. Where the state is divided (`shards`), `update` is of
            one replica's part of everything, and takes `squares` as its last argument.
        parameters, slots: whole, in the order in which the functions take them.
        batch: one replica's part.
        replicas: over which the gradients are summed.
        shards: of each parameter, its gradient and its slots, and of each slot by its name; empty
            if they are not divided.
        muon: if the state is divided, two functions whose results go to `update`: from one
            replica's rows of all matrices to stacks that are to be orthogonalized, and from its
            share of the stacks, with all their rows, to the same orthogonalized.
    """

    gradients: Traced
    update: Traced
    parameters: dict[str, Spec]
    slots: dict[str, Spec]
    batch: dict[str, Spec]
    replicas: int
    shards: dict[str, Division] = field(default_factory=dict)
    muon: tuple[Traced, Traced] | None = None
