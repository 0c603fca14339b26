"""Lowered train step, as serialized HLO with names, shapes and types of its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spec:
    """Shape of a tensor, and the name of its NumPy type."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Traced:
    """Lowered function: serialized HLO module, and specs of its inputs and outputs in order."""

    hlo: bytes
    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]


@dataclass(frozen=True)
class Division:
    """Sharding of a tensor over the replicas, along one dimension into parts of equal size.

    The dimension is padded with zeros if necessary. The optimizer's update keeps these zeros.
    """

    dimension: int
    size: int  # Size of one part along the dimension.

    def get_part(self, spec: Spec) -> Spec:
        """Return the spec of one replica's part."""
        return self._resize(spec, self.size)

    def get_whole(self, spec: Spec, replicas: int) -> Spec:
        """Return the spec of the whole tensor with padding.

        Args:
            spec: spec of the tensor without padding, or of one part.
            replicas: number of parts.
        """
        return self._resize(spec, self.size * replicas)

    def _resize(self, spec: Spec, size: int) -> Spec:
        before, after = spec.shape[: self.dimension], spec.shape[self.dimension + 1 :]
        return Spec((*before, size, *after), spec.dtype)


def choose_division(spec: Spec, replicas: int, by_rows: bool = False) -> Division:
    """Choose the dimension along which a tensor is sharded.

    With `by_rows` this is the first dimension. Otherwise it is the first dimension whose size is a
    multiple of `replicas`, or the longest dimension if no size is.
    """
    sizes = list(enumerate(spec.shape))
    divides = [place for place, size in sizes if by_rows or size % replicas == 0]
    dimension = divides[0] if divides else max(sizes, key=lambda item: item[1])[0]
    return Division(dimension, -(-spec.shape[dimension] // replicas))


def name_gradient(parameter: str) -> str:
    """Return the name of a parameter's gradient, as an argument of the step's functions."""
    return f"{parameter}/gradient"


@dataclass(frozen=True)
class LoweredStep:
    """Lowered step of one config, as traced by `program`.

    Args:
        gradients: function that computes one replica's gradients.
        update: function that updates parameters and slots on one replica. If the state is sharded,
            its arguments are the replica's parts, and there are two additional arguments (see
            `program`).
        parameters: specs of the whole parameters, in the order of the functions' arguments.
        slots: specs of the whole optimizer slots, in the order of the functions' arguments.
        batch: specs of one replica's part of a batch.
        replicas: number of replicas, over which the gradients are summed.
        shards: sharding of each parameter (and its gradient) and each slot by name, or {} if the
            state is not sharded.
        muon: two functions, or None if the state is not sharded. The first function stacks a
            replica's rows of all of Muon's matrices. The replicas then exchange rows, so that each
            replica has all rows of some matrices. The second function orthogonalizes these
            matrices. Before `update` the replicas exchange the rows back.
    """

    gradients: Traced
    update: Traced
    parameters: dict[str, Spec]
    slots: dict[str, Spec]
    batch: dict[str, Spec]
    replicas: int
    shards: dict[str, Division] = field(default_factory=dict)
    muon: tuple[Traced, Traced] | None = None
