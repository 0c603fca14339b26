"""Measured and counted rates of chips, in contrast to their specifications, and the time of a step.

The constants of `step_seconds` are fitted to published times of steps: docs/lab/clock.md.
"""

# Seconds per hop, and bytes per second of one link in one direction, measured with `ppermute`
# (marin-community/marin#6736). v5e's links have half of v6e's rate (jax-ml.github.io/scaling-book).
LINKS = {"v5e": (2.29e-6, 43.4e9), "v5p": (4.55e-6, 86.3e9), "v6e": (2.29e-6, 86.8e9)}
# Minimum share of a step in machine code for the step's time to be computed from it.
COUNTED = 0.9
# Seconds of a step in which the device waits for the host.
HOST_SECONDS = 0.005
# Exponent of the compiler's estimate of ops that are no kernels, next to their machine code; ratio
# of published times to both.
POWER, REACHED = 0.25, 1.1
# Without machine code: ratio of `step_seconds` to the estimate, 0.70 for base-4096 with XLA's
# attention on v5e and v6e, 0.80 for a BERT on v3.
BY_ESTIMATE = 0.75
# Interval that covers 80 % of published times, relative to the computed ones.
INTERVAL = (0.8, 1.4)
# The same for a step that was not compiled itself.
UNCOMPILED_INTERVAL = (0.75, 1.5)
# Share of the peak that a step reaches by `step_seconds`, without the host, on a whole slice with
# two sequences of 4,096 tokens a device. BigBird on v5e: 60.0 M cycles by machine code on the slice
# 2x4, of them 11.5 M in kernels, and 74.2 M by the estimate of the others; v6e: 31.8, 9.5 and 45.0;
# others by the estimate alone, which is 0.34 of the peak on v2 and v3, 0.20 on v4 and v5p and 0.11
# on v7x, with XLA's attention. ModernBERT has 0.57 and 0.24 by machine code, with the same ratio.
_OTHERS = {"v2": 0.42, "v3": 0.42, "v4": 0.27, "v5p": 0.27, "v7x": 0.15}
SHARES: dict[str, dict[str, float]] = {
    "bigbird": {**_OTHERS, "v5e": 0.52, "v6e": 0.24},
    "modernbert": {**_OTHERS, "v5e": 0.47, "v6e": 0.20},
}
# Width of these models.
WIDTH = 768
# Part of their time that grows with the width. The rest grows with its square.
BY_WIDTH = 0.59


def step_seconds(
    kernels: float, code: float | None, estimate: float, links: float
) -> tuple[float, str]:
    """Return the expected seconds of a step, and what they are based on.

    Args:
        kernels: seconds of kernels by machine code.
        code: seconds of other ops by machine code, with the waits for copies, or None if not
            counted.
            Sums between devices count by the bytes that they move in memory.
        estimate: seconds of other ops by the compiler's estimate.
        links: seconds of traffic between devices, which other work hides.
    """
    if code is None:
        seconds, basis = BY_ESTIMATE * estimate, "the compiler's estimate"
    else:
        seconds, basis = device_seconds(kernels, code, estimate), "machine code"
    return HOST_SECONDS + max(seconds, links), basis


def device_seconds(kernels: float, code: float, estimate: float, reached: float = REACHED) -> float:
    """Return the expected seconds that a device computes, by arguments of `step_seconds`."""
    return reached * (kernels + code ** (1 - POWER) * estimate**POWER)


def share_of_peak(architecture: str, chip: str, width: int) -> float:
    """Return the share of a chip's peak that a model of a width is expected to reach."""
    return SHARES[architecture][chip] / (1 - BY_WIDTH + BY_WIDTH * WIDTH / width)
