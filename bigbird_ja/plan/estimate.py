"""Estimates of tokens, hours and cost of a run, a row for each machine and pricing."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from bigbird_ja.accelerators import chips, environment, measured
from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.accelerators.prices import PRICINGS, Prices
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import model_flops
from bigbird_ja.preflight.results import PreflightResult
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config

SECONDS_PER_HOUR = 3600.0

# Size of Wiki40b Japanese (TFDS wiki40b/ja, train split), and its bytes per token. Used only
# without a data set, and printed as an assumption.
WIKI40B_JA_BYTES = 1.9e9
# Two characters of Japanese UTF-8 text, with a vocabulary of 32,000.
BYTES_PER_TOKEN = 6.0

# Of a spot machine, assumed. Seven spot v2 and v3 had 42 in 677 hours of 2022, 0.04 to 0.12 an hour
# (github.com/skypilot-org/skypilot/pull/1500); nobody publishes those of v5e and v6e.
PREEMPTIONS_PER_HOUR = 0.25
# Assumed (docs/design/launch.md): pause of training for a checkpoint; time from READY to the first
# step (boot, install, compile, restore); time without a machine after a preemption, not billed.
SAVE_SECONDS, RESTART_SECONDS, ABSENT_SECONDS = 15.0, 360.0, 300.0


@dataclass(frozen=True)
class Plan:
    """Run to plan, with the results of `preflight` for it."""

    config: Config
    data: Data
    results: PreflightResult = field(
        default_factory=lambda: PreflightResult(versions=environment.COMPILER)
    )
    preemptions_per_hour: float = PREEMPTIONS_PER_HOUR

    @property
    def tokens(self) -> int:
        """Number of positions of all steps, which approximates the tokens (99 %)."""
        steps = self.config.training.num_train_steps
        return steps * tokens_per_step(self.config, self.data)

    @property
    def checkpoint_interval(self) -> float:
        """Seconds of training between checkpoints, an hour without saving by time."""
        return 60 * (self.config.checkpoints.save_every_minutes or 60.0)


def tokens_per_step(config: Config, data: Data) -> int:
    """Count positions per optimizer step."""
    return config.training.global_batch_size * data.seq_length


@dataclass(frozen=True)
class MachineRate:
    """Rate of training on a machine, and the source of the figure."""

    tokens_per_second: float  # of the whole machine
    slower: float  # factor to the time of a step at the end of its interval
    faster: float
    source: str
    fits: bool | None = None  # by preflight; None if it has no entry for the machine


def rate_of(machine: Accelerator, run: Plan) -> MachineRate:
    """Return tokens per second, by preflight if the step was compiled and fits.

    Else by the share of the peak that preflight counts for a base model. The result for a whole
    slice includes its links, so it has priority over that for one chip.
    """
    step = run.results.find(machine)
    if step and step.step_ms and step.step_ms_range:
        whole = step.tokens_per_second
        rate = whole or (step.tokens_per_second_per_core or 0.0) * machine.units
        faster, slower = (end / step.step_ms for end in step.step_ms_range)
        where = f"preflight {step.topology}" if whole else "preflight, one chip"
        return MachineRate(rate, slower, faster, f"{where}, {step.basis}", True)
    model = run.config.model
    share = measured.share_of_peak(model.architecture, machine.chip, model.hidden_size)
    flops = model_flops(run.config, run.data, 1) / run.data.seq_length  # of a token
    tokens = tokens_per_step(run.config, run.data)
    seconds = tokens * flops / (machine.peak_flops * share) + measured.HOST_SECONDS
    ends = measured.UNCOMPILED_INTERVAL
    source = f"share of the peak of a compiled {model.architecture}"
    return MachineRate(tokens / seconds, ends[1], ends[0], source, step.fits if step else None)


@dataclass(frozen=True)
class RunTime:
    """Expected hours of a run."""

    rented_hours: float  # including saves, restarts and lost work
    wall_hours: float  # including the time between machines
    preemptions: float


def run_time(training_hours: float, interval: float, rate: float) -> RunTime | None:
    """Return the expected hours, with preemptions as a Poisson process over rented time.

    Each preemption repeats half a checkpoint interval on average and waits for the restart. With
    T the interval in seconds, s the save, R the restart and r the rate per rented hour, rented
    hours H of U hours of training solve H = U (1 + s/T) + r H (T/2 + s/2 + R).

    Returns:
        None if preemptions are so frequent that the run would never end.
    """
    busy = training_hours * (1 + SAVE_SECONDS / interval)
    restart = RESTART_SECONDS / SECONDS_PER_HOUR
    lost = (interval + SAVE_SECONDS) / 2 / SECONDS_PER_HOUR + restart
    share = 1 - rate * lost
    if share <= 0:
        return None
    rented = (busy + restart) / share
    preemptions = rate * rented
    wall = rented + (preemptions + 1) * ABSENT_SECONDS / SECONDS_PER_HOUR
    return RunTime(rented, wall, preemptions)


@dataclass(frozen=True)
class Row:
    """Machine with a pricing. `None`: unknown, or preemptions are too frequent to finish."""

    accelerator: str
    pricing: str  # on_demand, spot, or the provider of a free machine
    zone: str | None  # first of `zones`
    zones: tuple[str, ...]  # zones for `launch`; empty for a free machine
    tokens_per_second: float
    rate_source: str
    usd_per_hour: float | None
    price_as_of: str | None  # oldest date of the zones' prices
    training_hours: float  # without preemptions, saves or restarts
    hours: float | None  # rented hours, including saves, restarts and lost work
    wall_hours: float | None  # including the time between machines; None for free ones, too
    preemptions: float | None
    cost_usd: float | None
    # Minimum and maximum of these, with the time of a step in its interval.
    hours_range: tuple[float, float] | None
    wall_hours_range: tuple[float, float] | None
    cost_usd_range: tuple[float, float] | None
    fits: bool | None  # by preflight; None without a figure
    divides: bool  # whether devices times accumulation steps divide the global batch
    note: str  # all doubts, in short

    @property
    def is_free(self) -> bool:
        """Whether the machine costs nothing, as those of Kaggle and Colab."""
        return self.pricing not in PRICINGS


def make_rows(run: Plan, prices: Prices, names: Sequence[str] = (), near: str = "") -> list[Row]:
    """Return a row per machine and pricing, cheapest first, then those without a price.

    Args:
        run: run to plan.
        prices: table of prices; a row has the zones of `launch` and the highest price of them.
        names: names of machines; by default one of each TPU, the slices in the run's results and
            the free machines.
        near: region of the bucket; see `Prices.usual_zones`.

    Raises:
        BadInput: No such machine.
    """
    machines = [chips.find(name) for name in names or chips.USUAL]
    if not names:
        machines += [chips.of_topology(str(one.topology)) for one in run.results.topologies]
    rows = [
        make_row(run, chips.find(free.machine), provider, (), 0.0, None, free.note)
        for provider, free in ({} if names else prices.free).items()
    ]
    for machine in dict.fromkeys(machines):
        for pricing in PRICINGS:
            zones, price = prices.usual_zones(machine, pricing, near), None
            with contextlib.suppress(BadInput):  # no price is known
                price = prices.per_hour(machine, pricing, zones)
            as_of = str(prices.date(machine, zones)) if price is not None else None
            rows += [make_row(run, machine, pricing, zones, price, as_of)] if zones else []
    return sorted(rows, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def make_row(
    run: Plan,
    machine: Accelerator,
    pricing: str,
    zones: Sequence[str],
    price: float | None,
    as_of: str | None = None,
    free_note: str = "",
) -> Row:
    """Return the row of a machine at a price in some zones, in US dollars per hour, if known.

    A free machine has its provider as pricing, no zones, and no time of completion, since it is
    available only for some hours at a time.
    """
    rate = rate_of(machine, run)
    hours = run.tokens / rate.tokens_per_second / SECONDS_PER_HOUR
    preempted = run.preemptions_per_hour if pricing == "spot" else 0.0
    times = [
        run_time(factor * hours, run.checkpoint_interval, preempted)
        for factor in (1.0, rate.faster, rate.slower)
    ]
    odd = _indivisible(run, machine)
    doubts = (
        "does not fit" if rate.fits is False else "",
        odd,
        f"{machine.hosts} hosts" if machine.hosts > 1 else "",
        free_note,
        "" if price is not None else "no price is known: `price_file`",
    )
    is_dated = pricing in PRICINGS
    rented, rented_range = _figures(times, "rented_hours")
    wall, wall_range = _figures(times, "wall_hours", 1.0 if is_dated else None)
    cost, cost_range = _figures(times, "rented_hours", price)
    return Row(
        accelerator=machine.name,
        pricing=pricing,
        zone=next(iter(zones), None),
        zones=tuple(zones),
        tokens_per_second=rate.tokens_per_second,
        rate_source=rate.source,
        usd_per_hour=price,
        price_as_of=as_of,
        training_hours=hours,
        hours=rented,
        wall_hours=wall,
        preemptions=_figures(times, "preemptions", 1.0 if is_dated else None)[0],
        cost_usd=cost,
        hours_range=rented_range,
        wall_hours_range=wall_range,
        cost_usd_range=cost_range,
        fits=rate.fits,
        divides=not odd,
        note="; ".join(filter(None, doubts)),
    )


def _figures(
    times: Sequence[RunTime | None], name: str, factor: float | None = 1.0
) -> tuple[float | None, tuple[float, float] | None]:
    """Return a figure and the ends of its interval times a factor, None if it is unknown."""
    known = [factor * getattr(time, name) for time in times if time and factor is not None]
    return (known[0], (known[1], known[2])) if len(known) == len(times) else (None, None)


@dataclass(frozen=True)
class Budget:
    """Training that a budget pays for on a machine."""

    accelerator: str
    pricing: str
    share: float  # of the run's steps; above 1 if money is left
    steps: float
    tokens: float
    epochs: float


def budget_rows(run: Plan, rows: Sequence[Row], budget: float, epochs: float) -> list[Budget]:
    """Compute what a budget buys on each rented machine, most first.

    Args:
        run: run of the rows.
        rows: rows of machines.
        budget: US dollars.
        epochs: epochs of the run.
    """
    steps = run.config.training.num_train_steps
    shares = [(affordable_share(run, row, budget), row) for row in rows if not row.is_free]
    return [
        Budget(
            row.accelerator, row.pricing, share, share * steps, share * run.tokens, share * epochs
        )
        for share, row in sorted(shares, key=lambda pair: -(pair[0] or 0.0))
        if share is not None
    ]


def hours_by_preemptions(
    run: Plan, row: Row | None, rates: Sequence[float]
) -> dict[str, float | None]:
    """Return the rented hours of a spot machine by preemptions an hour, {} for another one."""
    if row is None or row.pricing != "spot":
        return {}
    times = [run_time(row.training_hours, run.checkpoint_interval, rate) for rate in rates]
    return {
        f"{rate:g}": time.rented_hours if time else None
        for rate, time in zip(rates, times, strict=True)
    }


def affordable_share(run: Plan, row: Row, budget: float) -> float | None:
    """Return the share of a run's training that a budget pays for, by the inverse of `run_time`.

    Args:
        run: run of the row.
        row: row of a rented machine.
        budget: US dollars.

    Returns:
        The share of the run's steps, above 1 if money is left; None if the price is unknown or
        preemptions are too frequent.
    """
    rate = run.preemptions_per_hour if row.pricing == "spot" else 0.0
    start = run_time(0.0, run.checkpoint_interval, rate)  # the rest is in proportion to training
    if not row.usd_per_hour or row.hours is None or start is None:
        return None
    hours = budget / row.usd_per_hour - start.rented_hours
    return max(0.0, hours / (row.hours - start.rented_hours))


def _indivisible(run: Plan, machine: Accelerator) -> str:
    """Return a note if the devices do not divide the global batch, else ""."""
    training = run.config.training
    parts = machine.devices * training.gradient_accumulation_steps
    batch = training.global_batch_size
    return f"a batch of {batch} does not divide by {parts}" if batch % parts else ""


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Return the cheapest row that can finish, the fastest of equal ones.

    Never a free machine: these have no time of completion.
    """
    able = [
        row
        for row in rows
        if row.divides and row.fits is not False and None not in (row.cost_usd, row.wall_hours)
    ]
    return min(able, key=attrgetter("cost_usd", "wall_hours"), default=None)
