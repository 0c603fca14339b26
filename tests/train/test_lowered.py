"""How tensors are divided over replicas."""

from __future__ import annotations

import pytest

from bigbird_ja.train.lowered import Shard, Spec, shard_of


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
