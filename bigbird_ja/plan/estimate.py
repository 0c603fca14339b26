"""Estimates of a run's tokens, hours and cost, one row for each machine and pricing."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from bigbird_ja.accelerators import chips, environment, measured
from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.accelerators.prices import PRICINGS, Prices
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import count_model_flops
from bigbird_ja.preflight.results import PreflightResult
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config

SECONDS_PER_HOUR = 3600.0

# Size of Wiki40b Japanese (TFDS wiki40b/ja, train split), the assumed text if no data set is given.
WIKI40B_JA_BYTES = 1.9e9
# With a vocabulary of 32,000, a token is about two Japanese characters of 3 bytes each in UTF-8.
BYTES_PER_TOKEN = 6.0

# Assumed preemptions per hour of a spot machine. In 2022, seven spot machines (v2, v3) had 42
# preemptions in 677 hours, 0.04 to 0.12 per hour (github.com/skypilot-org/skypilot/pull/1500). No
# figures of v5e and v6e are published.
PREEMPTIONS_PER_HOUR = 0.25
# Assumed pause of training for each checkpoint. docs/design/launch.md explains this assumption,
# `RESTART_SECONDS` and `ABSENT_SECONDS`.
SAVE_SECONDS = 15.0
# Assumed time from READY to the first step: boot, installation, compilation, restore.
RESTART_SECONDS = 360.0
# Assumed time without a machine after a preemption. It is not billed.
ABSENT_SECONDS = 300.0


@dataclass(frozen=True)
class Plan:
    """A run for which time and cost are estimated.

    Attributes:
        config: Settings of the run.
        data: Data set of the run.
        results: Results of `preflight` for the step of the run, or empty.
        preemptions_per_hour: Assumed preemptions per rented hour of a spot machine.
    """

    config: Config
    data: Data
    results: PreflightResult = field(
        default_factory=lambda: PreflightResult(versions=environment.COMPILER)
    )
    preemptions_per_hour: float = PREEMPTIONS_PER_HOUR

    @property
    def tokens(self) -> int:
        """Number of positions in all steps. About 99 % of them are tokens, the others padding."""
        steps = self.config.training.num_train_steps
        return steps * count_tokens_per_step(self.config, self.data)

    @property
    def checkpoint_interval(self) -> float:
        """Seconds of training between checkpoints. One hour if they are not saved by time."""
        return 60 * (self.config.checkpoints.save_every_minutes or 60.0)


def count_tokens_per_step(config: Config, data: Data) -> int:
    """Count positions per optimizer step."""
    return config.training.global_batch_size * data.seq_length


@dataclass(frozen=True)
class MachineRate:
    """Rate of training on a machine, and the source of the figure.

    Attributes:
        tokens_per_second: Tokens per second on the whole machine.
        slower: Maximum of the interval of a step's time, divided by the expected time.
        faster: Minimum of the interval of a step's time, divided by the expected time.
        source: Origin of the figure, for users.
        fits: Whether the step fits in memory according to `preflight`; None without a result for
            the machine.
    """

    tokens_per_second: float
    slower: float
    faster: float
    source: str
    fits: bool | None = None


def estimate_rate(machine: Accelerator, run: Plan) -> MachineRate:
    """Return the expected tokens per second of a run on a machine.

    If `preflight` compiled the step and the step fits, the rate is computed from its result. A
    result for the slice includes the traffic on the links, so it has priority over a result for one
    chip. Without a result, the rate is computed from the fraction of the peak FLOP/s that a model
    of base size reaches.
    """
    step = run.results.find(machine)
    if step and step.step_ms and step.step_ms_range:
        whole = step.tokens_per_second
        rate = whole or (step.tokens_per_second_per_core or 0.0) * machine.units
        faster, slower = (end / step.step_ms for end in step.step_ms_range)
        where = f"preflight {step.topology}" if whole else "preflight, one chip"
        return MachineRate(rate, slower, faster, f"{where}, {step.basis}", True)
    model = run.config.model
    share = measured.predict_share_of_peak(model.architecture, machine.chip, model.hidden_size)
    flops_per_token = count_model_flops(run.config, run.data, 1) / run.data.seq_length
    tokens = count_tokens_per_step(run.config, run.data)
    seconds = tokens * flops_per_token / (machine.peak_flops * share) + measured.HOST_SECONDS
    ends = measured.UNCOMPILED_INTERVAL
    source = f"share of the peak of a compiled {model.architecture}"
    return MachineRate(tokens / seconds, ends[1], ends[0], source, step.fits if step else None)


@dataclass(frozen=True)
class RunTime:
    """Expected hours of a run.

    Attributes:
        rented_hours: Billed hours, with saves, restarts and lost work.
        wall_hours: Hours until the end, with the time between machines.
        preemptions: Expected number of preemptions.
    """

    rented_hours: float
    wall_hours: float
    preemptions: float


def estimate_run_time(training_hours: float, interval: float, rate: float) -> RunTime | None:
    """Return the expected hours of a run, with preemptions as a Poisson process over rented time.

    Each preemption costs a restart, and on average half a checkpoint interval that is repeated. T
    is the interval, s the duration of a save, R the duration of a start or restart, and r the
    number of preemptions per rented hour. For U hours of training, the rented hours H are the
    solution of H = U (1 + s/T) + R + r H (T/2 + s/2 + R), with all durations in hours.

    Args:
        training_hours: Hours of training without interruption.
        interval: Seconds between checkpoints.
        rate: Preemptions per rented hour.

    Returns:
        The hours, or None if preemptions are so frequent that the run would never finish.
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
    """Estimate for one machine and pricing.

    A time or cost is None if it is unknown, or if preemptions are too frequent to finish.

    Attributes:
        accelerator: Name of the machine.
        pricing: "on_demand", "spot", or the provider of a free machine.
        zone: First of `zones`, or None.
        zones: Zones for `launch`; empty for a free machine.
        tokens_per_second: Expected rate of the whole machine.
        rate_source: Origin of the rate, for users.
        usd_per_hour: Price of the machine.
        price_as_of: Oldest date of the prices in `zones`.
        training_hours: Hours without preemptions, saves and restarts.
        hours: Billed hours, with saves, restarts and lost work.
        wall_hours: Hours until the end, with the time between machines; None for a free machine.
        preemptions: Expected number of preemptions; None for a free machine.
        cost_usd: Price of `hours`.
        hours_range: Minimum and maximum of `hours`, from the prediction interval of a step's time.
        wall_hours_range: Minimum and maximum of `wall_hours`.
        cost_usd_range: Minimum and maximum of `cost_usd`.
        fits: Whether the step fits in memory according to `preflight`; None without a result.
        divides: Whether the global batch is a multiple of devices times accumulation steps.
        note: Reasons against this machine, for users.
    """

    accelerator: str
    pricing: str
    zone: str | None
    zones: tuple[str, ...]
    tokens_per_second: float
    rate_source: str
    usd_per_hour: float | None
    price_as_of: str | None
    training_hours: float
    hours: float | None
    wall_hours: float | None
    preemptions: float | None
    cost_usd: float | None
    hours_range: tuple[float, float] | None
    wall_hours_range: tuple[float, float] | None
    cost_usd_range: tuple[float, float] | None
    fits: bool | None
    divides: bool
    note: str

    @property
    def is_free(self) -> bool:
        """Whether the machine is free, as on Kaggle and Colab."""
        return self.pricing not in PRICINGS


def make_rows(run: Plan, prices: Prices, names: Sequence[str] = (), near: str = "") -> list[Row]:
    """Return a row for each machine and pricing, cheapest first, with unknown prices last.

    Args:
        run: run to plan.
        prices: table of prices. A row contains the highest price in its zones.
        names: names of machines; by default one of each TPU generation, the slices in the run's
            results and the free machines.
        near: region of the data set's bucket, for the choice of zones.

    Raises:
        BadInput: A machine is unknown.
    """
    machines = [chips.find(name) for name in names or chips.USUAL]
    if not names:
        machines += [chips.parse_topology(str(one.topology)) for one in run.results.topologies]
    rows = [
        make_row(run, chips.find(free.machine), provider, (), 0.0, None, free.note)
        for provider, free in ({} if names else prices.free).items()
    ]
    for machine in dict.fromkeys(machines):
        for pricing in PRICINGS:
            zones, price = prices.choose_zones(machine, pricing, near), None
            # An error means that no price is known.
            with contextlib.suppress(BadInput):
                price = prices.get_hourly_price(machine, pricing, zones)
            as_of = str(prices.find_oldest_date(machine, zones)) if price is not None else None
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
    """Return the row of a machine.

    The time of completion on a free machine is unknown, since such a machine is available only for
    some hours at a time.

    Args:
        run: run to plan.
        machine: slice of chips.
        pricing: on_demand, spot, or the provider of a free machine.
        zones: zones for `launch`; empty for a free machine.
        price: US dollars per hour, or None if it is unknown.
        as_of: date of the price.
        free_note: note about a free machine.
    """
    rate = estimate_rate(machine, run)
    hours = run.tokens / rate.tokens_per_second / SECONDS_PER_HOUR
    preempted = run.preemptions_per_hour if pricing == "spot" else 0.0
    times = [
        estimate_run_time(factor * hours, run.checkpoint_interval, preempted)
        for factor in (1.0, rate.faster, rate.slower)
    ]
    odd = _describe_remainder(run, machine)
    doubts = (
        "does not fit" if rate.fits is False else "",
        odd,
        f"{machine.hosts} hosts" if machine.hosts > 1 else "",
        free_note,
        "" if price is not None else "no price is known: `price_file`",
    )
    is_dated = pricing in PRICINGS
    rented, rented_range = _scale_figures(times, "rented_hours")
    wall, wall_range = _scale_figures(times, "wall_hours", 1.0 if is_dated else None)
    cost, cost_range = _scale_figures(times, "rented_hours", price)
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
        preemptions=_scale_figures(times, "preemptions", 1.0 if is_dated else None)[0],
        cost_usd=cost,
        hours_range=rented_range,
        wall_hours_range=wall_range,
        cost_usd_range=cost_range,
        fits=rate.fits,
        divides=not odd,
        note="; ".join(filter(None, doubts)),
    )


def _scale_figures(
    times: Sequence[RunTime | None], name: str, factor: float | None = 1.0
) -> tuple[float | None, tuple[float, float] | None]:
    """Read a figure and its interval from three estimates, and multiply them by a factor.

    Args:
        times: estimates for the expected time of a step, for the minimum and for the maximum of the
            interval of this time.
        name: name of the figure, a field of `RunTime`.
        factor: factor, or None if it is unknown.

    Returns:
        The product for the expected time, and those for minimum and maximum. (None, None) if an
        estimate or the factor is unknown.
    """
    known = [factor * getattr(time, name) for time in times if time and factor is not None]
    return (known[0], (known[1], known[2])) if len(known) == len(times) else (None, None)


@dataclass(frozen=True)
class Budget:
    """Training that a budget pays for on a machine.

    Attributes:
        accelerator: Name of the machine.
        pricing: "on_demand" or "spot".
        share: Fraction of the run's steps; above 1 if the budget exceeds the cost.
        steps: Number of steps.
        tokens: Number of tokens.
        epochs: Number of epochs.
    """

    accelerator: str
    pricing: str
    share: float
    steps: float
    tokens: float
    epochs: float


def make_budget_rows(run: Plan, rows: Sequence[Row], budget: float, epochs: float) -> list[Budget]:
    """Compute how much of a run a budget pays for on each rented machine.

    The machine that trains the most steps for the budget comes first.

    Args:
        run: planned run.
        rows: one estimate for each machine and pricing.
        budget: budget in US dollars.
        epochs: number of epochs of the complete run.
    """
    steps = run.config.training.num_train_steps
    shares = [(compute_affordable_share(run, row, budget), row) for row in rows if not row.is_free]
    return [
        Budget(
            row.accelerator, row.pricing, share, share * steps, share * run.tokens, share * epochs
        )
        for share, row in sorted(shares, key=lambda pair: -(pair[0] or 0.0))
        if share is not None
    ]


def list_hours_by_preemptions(
    run: Plan, row: Row | None, rates: Sequence[float]
) -> dict[str, float | None]:
    """Return the rented hours of a spot machine at several rates of preemptions.

    Returns:
        The hours by rate (preemptions per hour), None for a rate at which the run would never
        finish. {} if `row` is None or not for a spot machine.
    """
    if row is None or row.pricing != "spot":
        return {}
    times = [estimate_run_time(row.training_hours, run.checkpoint_interval, rate) for rate in rates]
    return {
        f"{rate:g}": time.rented_hours if time else None
        for rate, time in zip(rates, times, strict=True)
    }


def compute_affordable_share(run: Plan, row: Row, budget: float) -> float | None:
    """Return the fraction of a run's training that a budget pays for.

    Args:
        run: planned run.
        row: estimate for a rented machine.
        budget: budget in US dollars.

    Returns:
        The fraction of the run's steps, above 1 if the budget exceeds the cost; None if the price
        is unknown or preemptions are too frequent.
    """
    rate = run.preemptions_per_hour if row.pricing == "spot" else 0.0
    # Rented hours are a linear function of the hours of training. `start` is the constant term.
    start = estimate_run_time(0.0, run.checkpoint_interval, rate)
    if not row.usd_per_hour or row.hours is None or start is None:
        return None
    hours = budget / row.usd_per_hour - start.rented_hours
    return max(0.0, hours / (row.hours - start.rented_hours))


def _describe_remainder(run: Plan, machine: Accelerator) -> str:
    """Return a note if the global batch cannot be split into equal micro-batches, else ""."""
    training = run.config.training
    parts = machine.devices * training.gradient_accumulation_steps
    batch = training.global_batch_size
    return f"a batch of {batch} is not divisible by {parts}" if batch % parts else ""


def find_cheapest(rows: Sequence[Row]) -> Row | None:
    """Return the cheapest row whose machine can finish the run, or None.

    Of several rows with the lowest cost, the fastest is chosen. Free machines are excluded, as
    their time of completion is unknown.
    """
    able = [
        row
        for row in rows
        if row.divides and row.fits is not False and None not in (row.cost_usd, row.wall_hours)
    ]
    return min(able, key=attrgetter("cost_usd", "wall_hours"), default=None)
