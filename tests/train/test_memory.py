"""The estimate of a step's memory, against peaks that were measured."""

from __future__ import annotations

import pytest

from bigbird_ja.process.errors import OutOfMemory
from bigbird_ja.settings.resolve import complete_config, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.train import memory

_BASE = 560e6  # of a process that has imported TensorFlow and read a data set

# hidden, layers, intermediate, sequence length, vocabulary, predictions, sequences; the most that
# `pretrain` took in three steps of it (VmHWM), two CPU cores, TensorFlow 2.15.
MEASURED = [
    ((256, 4, 1024, 1024, 200, 12, 4), 1.709e9),
    ((256, 4, 1024, 2048, 200, 12, 4), 2.694e9),
    ((256, 8, 1024, 2048, 200, 12, 4), 4.172e9),
    ((512, 4, 2048, 2048, 200, 12, 4), 4.415e9),
    ((512, 6, 2048, 512, 16000, 80, 4), 2.912e9),
    ((768, 12, 3072, 128, 16000, 12, 2), 6.289e9),
]


def config(
    hidden: int, layers: int, intermediate: int, length: int, vocabulary: int, predictions: int,
    *more: str,
) -> Config:  # fmt: skip
    settings = [
        f"model.hidden_size={hidden}", f"model.num_layers={layers}",
        f"model.num_attention_heads={hidden // 64}", f"model.intermediate_size={intermediate}",
        f"make_data.seq_length={length}", f"model.vocab_size={vocabulary}",
        f"make_data.max_predictions_per_seq={predictions}", *more,
    ]  # fmt: skip
    return complete_config(resolve_config(None, settings)[0])


@pytest.mark.parametrize(("case", "peak"), MEASURED)
def test_the_estimate_meets_what_was_measured(case: tuple[int, ...], peak: float) -> None:
    estimated = memory.estimate(config(*case[:-1]), case[-1])
    assert 0.75 <= estimated / (peak - _BASE) <= 1.15


def test_it_grows_with_what_makes_it_grow_and_says_what_to_lower() -> None:
    small, checkpointing = (
        config(256, 4, 1024, 2048, 200, 12, f"training.gradient_checkpointing={value}")
        for value in ("false", "true")
    )
    needed = memory.estimate(small, 4)
    assert memory.estimate(small, 8) > 1.8 * needed
    assert memory.estimate(checkpointing, 4) < needed
    memory.refuse_if_too_large(needed, available=needed)
    with pytest.raises(OutOfMemory, match=r"GB.*global_batch_size.*gradient_checkpointing"):
        memory.refuse_if_too_large(needed, available=needed // 2)


def test_what_there_is_is_less_than_the_machine_has() -> None:
    there = memory.available_bytes()
    assert there is not None and 0 < there < 1 << 50
