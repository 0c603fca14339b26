"""Computes tokens, hours and money of a run, a row for each machine and pricing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from bigbird_ja import accelerators
from bigbird_ja.accelerators import Accelerator
from bigbird_ja.accelerators.prices import PRICINGS, Prices
from bigbird_ja.model.params import model_flops
from bigbird_ja.plan.results import Results, Step
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

SECONDS_PER_HOUR = 3600.0
COUNTED = 0.9  # rates use machine code only where it covers at least this share of a step
# The share of the rate by machine code that whole train steps of others reached on real chips, and
# its interval, that of single kernels too, as our ops are smaller: docs/lab/clock.md. Priced cycles
# get no factor, though of one program (base-4096, XLA's attention, on v5e and v6e) they are some
# 1.9 times the cycles by machine code.
REACHED = 0.9
REACHED_RANGE = (0.7, 1.0)
LEAST_STEP_SECONDS = 5e-3  # what a host takes to start a step, assumed: it limits tiny models

# Wiki40b Japanese (TFDS wiki40b/ja, train split) as our background states it, and what the 2021
# tokenizer makes of it. Used only where there is no data set, and printed as an assumption.
WIKI40B_JA_BYTES = 1.9e9
BYTES_PER_TOKEN = 6.0  # Japanese UTF-8 text in a vocabulary of 32,000 pieces: two characters


@dataclass(frozen=True)
class Overheads:
    """The costs of preemptions, apart from the TPU's price: seconds, and events per rented hour."""

    preemptions_per_hour: float = 0.25  # one in four hours; assumed: docs/design/launch.md
    checkpoint_interval: float = 600.0  # seconds of training between two checkpoints
    save_seconds: float = 15.0  # training stands still this long for a checkpoint
    restart_seconds: float = 360.0  # READY until the first step: boot, install, compile, restore
    absent_seconds: float = 300.0  # unbilled: noticed, deleted, created again


@dataclass(frozen=True)
class Plan:
    """A run as it is planned, with the results of `preflight` for it."""

    config: Config
    data: Data
    results: Results = field(default_factory=lambda: Results([]))
    preemptions_per_hour: float = Overheads.preemptions_per_hour  # of a spot machine

    @property
    def tokens(self) -> int:
        """Count the positions of all steps; with full sequences (99 %) they are tokens."""
        steps = self.config.training.num_train_steps
        return steps * tokens_per_step(self.config, self.data)

    @property
    def overheads(self) -> Overheads:
        """Return the costs of preemptions; without saving by time, an hour between checkpoints."""
        interval = 60 * (self.config.checkpoints.save_every_minutes or 60.0)
        return Overheads(self.preemptions_per_hour, interval)


def tokens_per_step(config: Config, data: Data) -> int:
    """Count positions per optimiser step."""
    return config.training.global_batch_size * data.seq_length


def estimated_sequences(data: Data) -> tuple[int, str]:
    """Estimate the sequences of Wiki40b Japanese, and say what was assumed."""
    assumption = (
        f"no --data_dir: assuming Wiki40b Japanese, {WIKI40B_JA_BYTES / 1e9:.1f} GB of text at"
        f" {BYTES_PER_TOKEN:.0f} bytes per token, in full sequences of {data.seq_length}"
    )
    return math.ceil(WIKI40B_JA_BYTES / BYTES_PER_TOKEN / data.seq_length), assumption


@dataclass(frozen=True)
class MachineRate:
    """The rate of training on a machine, and the source of the figure."""

    tokens_per_second: float  # of the whole machine
    source: str
    fits: bool | None = None  # by preflight; None where it has no entry for the machine


def rate_of(machine: Accelerator, run: Plan) -> MachineRate:
    """Compute tokens per second, by preflight where the step was compiled and fits.

    Else by the share of the peak that it counts for a base model. By machine code, of which
    `REACHED` is taken, where there is any, else by BigBird's priced cycles. A whole slice is
    compiled with the sums over its devices, so it goes before a chip.
    """
    rate = _rate(machine, run)
    most = tokens_per_step(run.config, run.data) / LEAST_STEP_SECONDS
    if rate.tokens_per_second <= most:
        return rate
    return MachineRate(most, f"{LEAST_STEP_SECONDS * 1e3:.0f} ms a step, assumed", rate.fits)


def _rate(machine: Accelerator, run: Plan) -> MachineRate:
    slices = run.results.topologies
    whole = next((s for s in slices if accelerators.of_topology(s["topology"]) == machine), None)
    chip = next((one for one in run.results.chips if one["chip"] == machine.chip), None)
    if whole and (rate := whole["tokens_per_second"]):
        return _compiled_rate(whole, rate, f"preflight {whole['topology']}")
    if chip and not whole and (rate := chip["tokens_per_second_per_core"]):
        return _compiled_rate(chip, rate * machine.units, "preflight, one chip")
    step = whole or chip
    fits = step.get("fits", True) if step else None
    code_mfu = accelerators.CODE_MFU[run.config.model.architecture].get(machine.chip)
    share = REACHED * code_mfu if code_mfu else machine.priced_mfu
    basis = f"{REACHED:g} x machine code" if code_mfu else "priced cycles"
    flops = model_flops(run.config, run.data, 1) / run.data.seq_length  # per token
    return MachineRate(machine.peak_flops * share / flops, f"MFU {share:.0%}, {basis}", fits)


def _compiled_rate(step: Step, rate: float, source: str) -> MachineRate:
    """Correct a rate of `preflight`.

    The rates in `preflight`'s results are by priced cycles, which charge several times too much for
    what stays in fast memory (docs/design/preflight.md). So the rate is by machine code where
    nearly all of the step was counted; that leaves out what no compiler knows, such as
    memory stalls.
    """
    basis = "priced cycles"
    priced, code = step.get("priced_cycles"), step.get("code_cycles")
    if priced and code and (step.get("code_coverage") or 0.0) >= COUNTED:
        basis = f"{REACHED:g} x machine code"
        rate *= REACHED * priced / code
    return MachineRate(rate, f"{source}, {basis}", step.get("fits", True))


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
    busy = training_hours * (1 + overheads.save_seconds / interval)
    restart = overheads.restart_seconds / SECONDS_PER_HOUR
    lost = (interval + overheads.save_seconds) / 2 / SECONDS_PER_HOUR + restart
    share = 1 - rate * lost
    if share <= 0:
        return None
    rented = (busy + restart) / share
    preemptions = rate * rented
    wall = rented + (preemptions + 1) * overheads.absent_seconds / SECONDS_PER_HOUR
    return RunTime(rented, wall, preemptions)


@dataclass(frozen=True)
class Row:
    """One machine and pricing. `None`: not known, or preemptions are too frequent to finish."""

    accelerator: str
    pricing: str  # on_demand, spot, or the provider of a free machine
    zone: str | None  # where that price holds
    tokens_per_second: float
    rate_source: str
    usd_per_hour: float | None
    training_hours: float  # without preemptions, saving or restarts
    hours: float | None  # rented: with saves, restarts and lost work
    wall_hours: float | None  # with the time between machines
    preemptions: float | None
    cost_usd: float | None
    # The least and the most of these, with the rate anywhere in its interval: `REACHED_RANGE`.
    hours_range: tuple[float, float] | None
    wall_hours_range: tuple[float, float] | None
    cost_usd_range: tuple[float, float] | None
    fits: bool | None  # by preflight; None where there is no figure
    divides: bool  # the global batch, over the machine's devices and accumulation steps
    note: str  # all doubts, in a few words


def make_rows(runs: Sequence[Plan], prices: Prices, names: Sequence[str] = ()) -> list[Row]:
    """Make one row per machine and pricing, cheapest first; those without a price come last.

    Args:
        runs: one after the other on each machine; a row has their sums.
        prices: each row has its machine's cheapest zone.
        names: these machines only; by default one of each TPU, the slices in the runs' results
            and the free machines.

    Raises:
        BadInput: no machine has that name.
    """
    machines = [accelerators.find(name) for name in names or accelerators.USUAL]
    rows = []
    if not names:
        slices = [one for run in runs for one in run.results.topologies]
        machines += [accelerators.of_topology(one["topology"]) for one in slices]
        for provider, free in prices.free.items():
            machine = accelerators.find(free.machine)
            rows.append(make_row(runs, machine, provider, None, 0.0, free.note))
    for machine in dict.fromkeys(machines):
        for pricing in PRICINGS:
            for zone, price in prices.by_zone(machine.name, pricing)[:1]:
                rows.append(make_row(runs, machine, pricing, zone, price))
    return sorted(rows, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def make_row(
    runs: Sequence[Plan],
    machine: Accelerator,
    pricing: str,
    zone: str | None,
    price: float | None,
    free_note: str = "",
) -> Row:
    """Make one row.

    Args:
        runs: one after the other.
        machine: the TPU slice.
        pricing: on_demand, spot, or the provider of a free machine, limited in hours: undated.
        zone: of that price.
        price: US dollars per hour, where it is known.
        free_note: of a free machine.
    """
    rates, tokens = [rate_of(machine, run) for run in runs], [run.tokens for run in runs]
    seconds = [n / rate.tokens_per_second for n, rate in zip(tokens, rates, strict=True)]
    is_dated, ends = pricing in PRICINGS, (REACHED / share for share in reversed(REACHED_RANGE))
    times, *extremes = (_times(runs, seconds, slower, pricing) for slower in (1.0, *ends))
    odd = next(filter(None, (_indivisible(run, machine) for run in runs)), "")
    fits = [rate.fits for rate in rates]
    doubts = (
        "does not fit" if False in fits else "",
        odd,
        f"{machine.hosts} hosts" if machine.hosts > 1 else "",
        free_note,
        "" if price is not None else "no price is known: --price_file",
    )
    return Row(
        accelerator=machine.name,
        pricing=pricing,
        zone=zone,
        tokens_per_second=sum(tokens) / sum(seconds),
        rate_source="; ".join(dict.fromkeys(rate.source for rate in rates)),
        usd_per_hour=price,
        training_hours=sum(seconds) / SECONDS_PER_HOUR,
        hours=_total(times, "rented_hours"),
        wall_hours=_total(times, "wall_hours") if is_dated else None,
        preemptions=_total(times, "preemptions") if is_dated else None,
        cost_usd=_total(times, "rented_hours", price),
        hours_range=_range(extremes, "rented_hours"),
        wall_hours_range=_range(extremes, "wall_hours") if is_dated else None,
        cost_usd_range=_range(extremes, "rented_hours", price),
        fits=None if None in fits else all(fits),
        divides=not odd,
        note="; ".join(filter(None, doubts)),
    )


def _times(
    runs: Sequence[Plan], seconds: Sequence[float], slower: float, pricing: str
) -> list[RunTime | None]:
    """Compute each run's expected hours, from seconds of training, each times `slower`."""
    hours, is_spot = [slower * each / SECONDS_PER_HOUR for each in seconds], pricing == "spot"
    return [run_time(each, run.overheads, is_spot) for each, run in zip(hours, runs, strict=True)]


def _range(
    extremes: Sequence[list[RunTime | None]], name: str, price: float | None = 1.0
) -> tuple[float, float] | None:
    """Sum one figure of the fastest and of the slowest runs, as `_total` does."""
    low, high = (_total(times, name, price) for times in extremes)
    return None if low is None or high is None else (low, high)


def _total(times: Sequence[RunTime | None], name: str, price: float | None = 1.0) -> float | None:
    """Sum one figure of several runs, times a price; None where it is unknown or never ends."""
    return None if None in times or price is None else sum(map(attrgetter(name), times)) * price


def _indivisible(run: Plan, machine: Accelerator) -> str:
    """Say that the global batch does not divide over the devices; "" where it does."""
    training = run.config.training
    parts = machine.devices * training.gradient_accumulation_steps
    batch = training.global_batch_size
    return f"a batch of {batch} does not divide by {parts}" if batch % parts else ""


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Choose the cheapest row that can finish, as far as is known; of equal ones the fastest.

    Never a free machine: these have no date of completion.
    """
    able = [
        row
        for row in rows
        if row.divides
        and row.fits is not False
        and row.cost_usd is not None
        and row.wall_hours is not None
    ]
    return min(able, key=attrgetter("cost_usd", "wall_hours"), default=None)
