"""Prediction of a step's time from counted cycles and measured rates.

The constants are fitted to published times of steps: docs/lab/clock.md.
"""

# Seconds per hop, and bytes per second of one link in one direction, measured with `ppermute`
# (marin-community/marin#6736). v5e's links have half of v6e's rate (jax-ml.github.io/scaling-book).
LINKS = {"v5e": (2.29e-6, 43.4e9), "v5p": (4.55e-6, 86.3e9), "v6e": (2.29e-6, 86.8e9)}
# Minimum fraction of a step's cycles that are counted in machine code. Below it, the step's time is
# computed from the compiler's estimate.
COUNTED = 0.9
# Seconds of a step in which the device waits for the host.
HOST_SECONDS = 0.005
# The time of ops other than kernels is `REACHED` times the geometric mean of two times: that of the
# machine code, and the compiler's estimate with the weight `POWER`. `REACHED` was fitted to
# published times.
POWER, REACHED = 0.25, 1.1
# Ratio of a step's time to the compiler's estimate, if there is no machine code. It is 0.70 for
# base-4096 with XLA's attention on v5e and v6e, and 0.80 for a BERT on v3.
BY_ESTIMATE = 0.75
# Interval that covers 80 % of published times, relative to the predicted ones.
INTERVAL = (0.8, 1.4)
# Such an interval for a step that was not compiled.
UNCOMPILED_INTERVAL = (0.75, 1.5)
# Fraction of the peak that a step is predicted to reach on a slice, with two sequences of 4,096
# tokens per device and without `HOST_SECONDS`. It is computed as follows.
# - BigBird on v5e (2x4): 60.0 M cycles by machine code, 11.5 M of them in kernels; for the other
#   ops, the estimate is 74.2 M. On v6e: 31.8 M, 9.5 M and 45.0 M.
# - ModernBERT on v5e and v6e: from 0.57 and 0.24 by machine code, with BigBird's ratio.
# - Other chips: from the estimate, with XLA's attention, which is 0.34 of the peak on v2 and v3,
#   0.20 on v4 and v5p, and 0.11 on v7x.
_OTHERS = {"v2": 0.42, "v3": 0.42, "v4": 0.27, "v5p": 0.27, "v7x": 0.15}
SHARES: dict[str, dict[str, float]] = {
    "bigbird": {**_OTHERS, "v5e": 0.52, "v6e": 0.24},
    "modernbert": {**_OTHERS, "v5e": 0.47, "v6e": 0.20},
}
# Hidden size of the models in `SHARES`.
WIDTH = 768
# Fraction of a step's time that is linear in the hidden size, for these models. The rest is
# quadratic.
BY_WIDTH = 0.59


def predict_step_seconds(
    kernels: float, code: float | None, estimate: float, links: float
) -> tuple[float, str]:
    """Return the expected seconds of a step, and a text about the basis of the prediction.

    Args:
        kernels: seconds of kernels by machine code.
        code: seconds of other ops by machine code, with the waits for copies; None if they are not
            counted.
        estimate: seconds of other ops by the compiler's estimate.
        links: seconds of traffic between devices, which overlaps with computation.
    """
    if code is None:
        seconds, basis = BY_ESTIMATE * estimate, "the compiler's estimate"
    else:
        seconds, basis = predict_device_seconds(kernels, code, estimate), "machine code"
    return HOST_SECONDS + max(seconds, links), basis


def predict_device_seconds(
    kernels: float, code: float, estimate: float, reached: float = REACHED
) -> float:
    """Return the expected seconds in which a device computes.

    Args:
        kernels: seconds of kernels by machine code.
        code: seconds of other ops by machine code.
        estimate: seconds of other ops by the compiler's estimate.
        reached: ratio of published times to the computed ones.
    """
    return reached * (kernels + code ** (1 - POWER) * estimate**POWER)


def predict_share_of_peak(architecture: str, chip: str, width: int) -> float:
    """Return the fraction of a chip's peak that a model of hidden size `width` should reach."""
    return SHARES[architecture][chip] / (1 - BY_WIDTH + BY_WIDTH * WIDTH / width)
