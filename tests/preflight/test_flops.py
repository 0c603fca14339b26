"""FLOPs of programs and of models."""

from __future__ import annotations

import pytest

from bigbird_ja import config as config_lib
from bigbird_ja.errors import BadInput
from bigbird_ja.preflight import flops, hlo


def _module(*lines: str) -> hlo.Module:
    body = "\n".join(lines)
    return hlo.parse(f"HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n{body}\n}}\n")


def test_a_dot() -> None:
    module = _module(
        "  %a = f32[4,16,8]{2,1,0} parameter(0)",
        "  %b = f32[4,8,32]{2,1,0} parameter(1)",
        "  %d = f32[4,16,32]{2,1,0} dot(f32[4,16,8]{2,1,0} %a, f32[4,8,32]{2,1,0} %b),"
        " lhs_batch_dims={0}, lhs_contracting_dims={2},"
        " rhs_batch_dims={0}, rhs_contracting_dims={1}",
    )
    assert flops.matmul_flops(module) == 2 * 4 * 16 * 32 * 8


@pytest.mark.parametrize(
    ("window", "labels", "kernel", "output", "expected"),
    [
        # A plain matmul.
        ("", "bf_io->bf", "8,32", "16,32", 2 * 16 * 32 * 8),
        # A batched one: the window walks over the batch and picks one element of it.
        ("size=4 stride=3 pad=0_0 lhs_dilate=4", "0bf_0io->0bf", "4,8,32", "4,16,32",
         2 * 4 * 16 * 32 * 8),
        # A dimension of the kernel that is summed over.
        ("size=4", "b0f_0io->b0f", "4,8,32", "16,1,32", 2 * 16 * 32 * 8 * 4),
        # A dimension of the output that comes from the kernel alone.
        ("size=4 pad=3_3 rhs_reversal=1", "b0f_0io->b0f", "4,8,32", "16,4,32",
         2 * 16 * 4 * 32 * 8),
    ],
)  # fmt: skip
def test_matmuls_that_the_compiler_writes_as_convolutions(
    window: str, labels: str, kernel: str, output: str, expected: int
) -> None:
    module = _module(
        "  %a = f32[16,8]{1,0} parameter(0)",
        f"  %k = f32[{kernel}] parameter(1)",
        f"  %c = f32[{output}] convolution(f32[16,8]{{1,0}} %a, f32[{kernel}] %k),"
        f" window={{{window}}}, dim_labels={labels}",
    )
    assert flops.matmul_flops(module) == expected


def _config(*sets: str) -> config_lib.Config:
    config, _ = config_lib.resolve(None, sets)
    return config_lib.without_data_set(config)


def test_model_flops_of_full_attention_by_hand() -> None:
    config = _config(
        "model.hidden_size=8", "model.num_attention_heads=2", "model.intermediate_size=32",
        "model.num_layers=3", "make_data.seq_length=16", "tokenize.vocab_size=100",
        "make_data.max_predictions_per_seq=5", "model.attention_type=original_full",
    )  # fmt: skip
    layer = 16 * 2 * (4 * 8 * 8 + 2 * 8 * 32) + 4 * 8 * 16 * 16
    head = 5 * 2 * (8 * 8 + 8 * 100)
    assert flops.model_flops(config, batch_per_core=2) == 3 * 2 * (3 * layer + head)


@pytest.mark.parametrize(("pattern", "per_row"), [("rolled", 4), ("independent", 3)])
def test_sparse_attention_counts_what_its_pattern_lets_see(pattern: str, per_row: int) -> None:
    config = _config(f"model.random_pattern={pattern}")
    blocks = 64
    # Rows next to a global block see it once; the two global rows see everything.
    by_hand = (blocks - 2) * (5 + per_row) - 2 + 2 * blocks
    assert flops.visible_pairs(config) == by_hand * 64 * 64


def test_doubling_the_length_doubles_sparse_work() -> None:
    short, long = (flops.visible_pairs(_config(f"make_data.seq_length={n}")) for n in (4096, 8192))
    assert 1.95 < long / short < 2.05


def test_a_length_that_the_pattern_refuses_is_bad_input() -> None:
    with pytest.raises(BadInput, match="multiple"):
        flops.visible_pairs(_config("make_data.seq_length=4100"))
