"""How tensors are divided over replicas."""

from __future__ import annotations

import msgspec
import pytest

from bigbird_ja.train.lowered import LoweredStep, Shard, Spec, Traced, shard_of


@pytest.mark.parametrize(
    ("shape", "replicas", "shard"),
    [
        ((768, 3072), 8, Shard(0, 96)),
        ((2, 768), 8, Shard(1, 96)),
        ((768,), 32, Shard(0, 24)),
        ((3, 5), 4, Shard(1, 2)),  # nothing divides: the longest, filled up
        ((2,), 4, Shard(0, 1)),
    ],
)
def test_shards(shape: tuple[int, ...], replicas: int, shard: Shard) -> None:
    spec = Spec(shape, "float32")
    assert shard_of(spec, replicas) == shard
    part, whole = shard.part(spec), shard.whole(spec, replicas)
    assert part.shape[shard.dimension] * replicas == whole.shape[shard.dimension]
    assert all(a <= b for a, b in zip(spec.shape, whole.shape, strict=True))


def test_a_step_goes_through_a_file() -> None:
    spec = Spec((2, 3), "float32")
    traced = Traced(b"\0\xff", {"a": spec}, {"b": spec})
    step = LoweredStep(traced, traced, {"a": spec}, {}, {}, 4, "bfloat16", {"a": Shard(0, 1)})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=LoweredStep) == step
