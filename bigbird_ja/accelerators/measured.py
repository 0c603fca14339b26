"""Prediction of a step's time from counted cycles and measured rates.

The constants are fitted to published times of steps (docs/lab/clock.md).
"""

# Seconds per hop, and bytes per second of one link in one direction, measured with `ppermute`
# (marin-community/marin#6736). v5e's links have half of v6e's rate (jax-ml.github.io/scaling-book).
LINKS = {"v5e": (2.29e-6, 43.4e9), "v5p": (4.55e-6, 86.3e9), "v6e": (2.29e-6, 86.8e9)}
# Minimum fraction of a step's cycles that must be counted in machine code. Below this minimum, the
# step's time is computed from the compiler's estimate.
COUNTED = 0.9
# Seconds of a step in which the device waits for the host.
HOST_SECONDS = 0.005
# The time of a step on a device is `REACHED` times the sum of two times: the time of its kernels,
# and the time of its other ops. The latter is a geometric mean of the time by machine code and the
# compiler's estimate, in which the estimate has the weight `POWER`. `REACHED` was fitted to
# published times.
POWER, REACHED = 0.25, 1.1
# Assumed ratio of a step's time to the compiler's estimate, for a step without machine code. The
# ratio is 0.70 for base-4096 with XLA's attention on v5e and v6e, and 0.80 for a BERT on v3.
BY_ESTIMATE = 0.75
# Interval that covers 80 % of published times, relative to the predicted ones.
INTERVAL = (0.8, 1.4)
# Wider interval for a step that was not compiled, relative to its predicted time.
UNCOMPILED_INTERVAL = (0.75, 1.5)
# Fraction of the peak that a step is predicted to reach on a slice, with two sequences of 4,096
# tokens per device and without `HOST_SECONDS`. It is computed as follows.
# - BigBird on v5e (2x4): from 60.0 M cycles by machine code, of which kernels take 11.5 M, and from
#   the compiler's estimate of 74.2 M cycles for the other ops. On v6e these three numbers are
#   31.8 M, 9.5 M and 45.0 M.
# - ModernBERT on v5e and v6e: machine code alone gives 0.57 and 0.24. These fractions are
#   multiplied by BigBird's ratio of cycles by machine code to predicted cycles.
# - Other chips: from the compiler's estimate for XLA's attention. The estimate alone gives 0.34 on
#   v2 and v3, 0.20 on v4 and v5p, and 0.11 on v7x.
_OTHERS = {"v2": 0.42, "v3": 0.42, "v4": 0.27, "v5p": 0.27, "v7x": 0.15}
SHARES: dict[str, dict[str, float]] = {
    "bigbird": {**_OTHERS, "v5e": 0.52, "v6e": 0.24},
    "modernbert": {**_OTHERS, "v5e": 0.47, "v6e": 0.20},
}
# Hidden size of the models in `SHARES`.
WIDTH = 768
# Fraction of a step's time that is linear in the hidden size, for the models in `SHARES`. The rest
# of the time is quadratic in the hidden size.
BY_WIDTH = 0.59


def predict_step_seconds(
    kernels: float, code: float | None, estimate: float, links: float
) -> tuple[float, str]:
    """Return the expected seconds of a step, and a text about the basis of the prediction.

    Args:
        kernels: seconds of kernels, counted in the machine code.
        code: seconds of other ops and of waits for copies, counted in the machine code, or None
            without such a count.
        estimate: seconds of other ops, estimated by the compiler.
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
    """Return the expected seconds that a device spends on the computation of a step.

    Args:
        kernels: seconds of kernels, counted in the machine code.
        code: seconds of other ops, counted in the machine code.
        estimate: seconds of other ops, estimated by the compiler.
        reached: ratio of published times to computed times.
    """
    return reached * (kernels + code ** (1 - POWER) * estimate**POWER)


def predict_share_of_peak(architecture: str, chip: str, width: int) -> float:
    """Return the fraction of a chip's peak that a model of hidden size `width` should reach."""
    return SHARES[architecture][chip] / (1 - BY_WIDTH + BY_WIDTH * WIDTH / width)
