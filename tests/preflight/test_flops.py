"""FLOPs of compiled programs."""

from __future__ import annotations

import pytest

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
