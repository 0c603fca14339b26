"""Measured and counted rates of chips, in contrast to their specifications."""

# Seconds per hop, and bytes per second of one link in one direction, measured with `ppermute`
# (marin-community/marin#6736); v5e's links have half of v6e's rate (jax-ml.github.io/scaling-book).
LINKS = {"v5e": (2.29e-6, 43.4e9), "v5p": (4.55e-6, 86.3e9), "v6e": (2.29e-6, 86.8e9)}
# Share of the peak that `preflight` counts for base-4096 on whole slices, two sequences a device.
# By priced cycles, XLA's attention: v3, v4, v5e by libtpu 0.0.11.4; v5p, v6e, v7x by 0.0.52. No v2
# slice was compiled: it takes the value of v3, the most similar chip.
PRICED_MFU = {
    **{"v2": 0.34, "v3": 0.34, "v4": 0.20, "v5e": 0.25},
    **{"v5p": 0.20, "v6e": 0.10, "v7x": 0.11},
}
# By machine code, of the step that runs there, with kernels, by architecture (libtpu 0.0.42.1).
# BigBird: v5e: 60.0 M cycles of the slice 2x4; v6e: 26.0 to 27.1 M of one chip, and 3.5 ms for the
# sums over 2x4, computed from the links' rate. ModernBERT (`make bench-length`): cycles of one chip
# at 1,024 tokens, the length with the lowest share; time of the sums in proportion to parameters.
CODE_MFU: dict[str, dict[str, float]] = {
    "bigbird": {"v5e": 0.63, "v6e": 0.29},
    "modernbert": {"v5e": 0.57, "v6e": 0.24},
}
# Minimum share of a step that machine code must cover for `plan` to use its rate.
COUNTED = 0.9
# Share of the rate by machine code that published train steps reached on real chips, and its
# interval, which includes single kernels, as our ops are smaller: docs/lab/clock.md. Priced cycles
# get no factor, although they are some 1.9 times the cycles by machine code for one program
# (base-4096, XLA's attention, on v5e and v6e).
REACHED = 0.9
REACHED_RANGE = (0.7, 1.0)
