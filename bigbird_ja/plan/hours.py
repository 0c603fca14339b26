"""Estimates the rate of training on a machine, and rented hours with preemptions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja import accelerators
from bigbird_ja.accelerators import Accelerator
from bigbird_ja.model.params import model_flops
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

SECONDS_PER_HOUR = 3600.0
COUNTED = 0.9  # rates use machine code only where it covers at least this share of a step
# The share of the rate by machine code that is expected: it knows no waiting for hosts or links.
# Priced cycles get no factor: of one program (base-4096, XLA's attention, on v5e and v6e) they are
# some 1.9 times the cycles by machine code, which is about as much.
REACHED = 0.6
HERE = 0.4  # share of NumPy's rate; steps of tiny-cpu reached 0.4 to 0.6 of it on two x86-64 cores
LEAST_STEP_SECONDS = 5e-3  # what a host takes to start a step, assumed: it limits tiny models


@dataclass(frozen=True)
class Figures:
    """Results of `preflight --output`: entries of its `chips` and of its `topologies`."""

    chips: Sequence[Mapping[str, Any]] = ()  # `chip`, `fits`, `tokens_per_second_per_core`
    slices: Sequence[Mapping[str, Any]] = ()  # `topology`, `fits`, `tokens_per_second`


NO_FIGURES = Figures()


@dataclass(frozen=True)
class Rate:
    """The rate of training on a machine, and the source of the figure."""

    tokens_per_second: float  # of the whole machine
    source: str
    fits: bool | None = None  # by preflight; None where it has no entry for the machine


def rate_of(
    machine: Accelerator, config: Config, data: Data, figures: Figures, mfu: float | None
) -> Rate:
    """Compute tokens per second, by preflight where the step was compiled and fits.

    Else by the share of the peak that it counts for a base model. By machine code, of which
    `REACHED` is taken, where there is any, else by BigBird's priced cycles. A whole slice is
    compiled with the sums over its devices, so it goes before a chip.

    Args:
        machine: the TPU slice.
        config: of the run.
        data: its data set.
        figures: of `preflight`.
        mfu: `--mfu`, for all machines, and taken whole; None: the table's value for each.
    """
    most = tokens_per_step(config, data) / LEAST_STEP_SECONDS
    rate = _rate(machine, config, data, figures, mfu)
    if rate.tokens_per_second <= most:
        return rate
    return Rate(most, f"{LEAST_STEP_SECONDS * 1e3:.0f} ms a step, assumed", rate.fits)


def _rate(
    machine: Accelerator, config: Config, data: Data, figures: Figures, mfu: float | None
) -> Rate:
    entries = [e for e in figures.slices if accelerators.of_topology(str(e["topology"])) == machine]
    entries += [e for e in figures.chips if e["chip"] == machine.chip]
    fits = bool(entries[0].get("fits", True)) if entries else None
    if entries and (rate := _compiled_rate(entries[0], machine.units)):
        return rate
    code_mfu = accelerators.CODE_MFU[config.model.architecture].get(machine.chip)
    by_code = code_mfu is not None and not mfu
    share = mfu or (REACHED * code_mfu if code_mfu else machine.priced_mfu)
    flops = model_flops(config, data, 1) / data.seq_length  # per token
    speed = machine.peak_flops * share / flops
    basis = f"{REACHED:g} x machine code" if by_code else "priced cycles"
    if not machine.chip:
        basis = f"what NumPy multiplies now, {machine.peak_flops / 1e9:,.0f} GFLOP/s"
    source = f"MFU {share:.0%}, " + ("assumed" if mfu else basis)
    return Rate(speed, source, fits)


def _compiled_rate(entry: Mapping[str, Any], units: int) -> Rate | None:
    """Return the rate of so many units by an entry of `preflight`; None where it has none.

    The rates in `preflight`'s results are by priced cycles, which charge several times too much for
    what stays in fast memory (docs/design/preflight.md). So the rate is by machine code where
    nearly all of the step was counted; that leaves out what no compiler knows, such as
    memory stalls.
    """
    if "topology" in entry:
        key, units, source = "tokens_per_second", 1, f"preflight {entry['topology']}"
    else:
        key, source = "tokens_per_second_per_core", "preflight, one chip"
    if not entry.get(key):
        return None
    rate, basis = entry[key] * units, "priced cycles"
    priced, code = entry.get("priced_cycles"), entry.get("code_cycles")
    if priced and code and (entry.get("code_coverage") or 0.0) >= COUNTED:
        basis = f"{REACHED:g} x machine code"
        rate *= REACHED * priced / code
    return Rate(rate, f"{source}, {basis}", bool(entry.get("fits", True)))


def tokens_per_step(config: Config, data: Data) -> int:
    """Count positions per optimiser step; with full sequences (99 %) they are tokens."""
    return config.training.global_batch_size * data.seq_length


# --- preemptions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overheads:
    """The costs of preemptions, apart from the TPU's price: seconds, and events per rented hour."""

    preemptions_per_hour: float = 0.25  # one in four hours; see docs/launch for what it rests on
    checkpoint_interval: float = 600.0  # seconds of training between two checkpoints
    save_seconds: float = 15.0  # training stands still this long for a checkpoint
    restart_seconds: float = 360.0  # READY until the first step: boot, install, compile, restore
    absent_seconds: float = 300.0  # unbilled: noticed, deleted, created again


@dataclass(frozen=True)
class RunTime:
    """Expected hours of one run."""

    rented_hours: float  # with saves, restarts and lost work
    wall_hours: float  # with the time between machines
    preemptions: float


def run_time(training_hours: float, overheads: Overheads, preemptible: bool) -> RunTime | None:
    """Compute expected hours with preemptions as a Poisson process over rented time.

    Each preemption repeats half a checkpoint interval on average and waits for the restart. With
    T the interval, s the save, R the restart and r the rate, rented hours H solve
    H = U (1 + s/T) + r H (T/2 + s/2 + R).

    Returns:
        None where preemptions are so frequent that the run would never end.
    """
    rate = overheads.preemptions_per_hour if preemptible else 0.0
    interval = overheads.checkpoint_interval
    busy = training_hours * (1 + (overheads.save_seconds / interval if interval else 0))
    restart = overheads.restart_seconds / SECONDS_PER_HOUR
    lost = (interval + overheads.save_seconds) / 2 / SECONDS_PER_HOUR + restart
    share = 1 - rate * lost
    if share <= 0:
        return None
    rented = (busy + restart) / share
    preemptions = rate * rented
    wall = rented + (preemptions + 1) * overheads.absent_seconds / SECONDS_PER_HOUR
    return RunTime(rented, wall, preemptions)


def best_interval(overheads: Overheads) -> float:
    """Compute Young's optimum in seconds: sqrt(2 * save * mean time between preemptions)."""
    if not overheads.preemptions_per_hour:
        return math.inf
    return math.sqrt(2 * overheads.save_seconds * SECONDS_PER_HOUR / overheads.preemptions_per_hour)
