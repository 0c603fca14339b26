"""Estimates of tokens, hours and cost of a run, a row for each machine and pricing."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bigbird_ja.accelerators import chips, environment
from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.accelerators.measured import CODE_MFU, COUNTED, PRICED_MFU, REACHED, REACHED_RANGE
from bigbird_ja.accelerators.prices import PRICINGS, Prices
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import model_flops
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import decode

SECONDS_PER_HOUR = 3600.0
MIN_STEP_SECONDS = 5e-3  # minimum time for a host to start a step, assumed: for tiny models

# Size of Wiki40b Japanese (TFDS wiki40b/ja, train split), and its bytes per token. Used only
# without a data set, and printed as an assumption.
WIKI40B_JA_BYTES = 1.9e9
BYTES_PER_TOKEN = 6.0  # Japanese UTF-8 text with a vocabulary of 32,000: two characters

# Assumed (docs/design/launch.md): pause of training for a checkpoint; time from READY to the first
# step (boot, install, compile, restore); time without a machine after a preemption, not billed.
SAVE_SECONDS, RESTART_SECONDS, ABSENT_SECONDS = 15.0, 360.0, 300.0

Rate = Annotated[float, Meta(gt=0, le=1e15)]  # tokens per second
Cycles = Annotated[float, Meta(ge=0, le=1e18)]  # of one step


class Step(TypedDict, total=False):
    """Figures of a compiled step; a rate is None if the step does not fit."""

    priced_cycles: Cycles | None  # basis of the rates
    code_cycles: Cycles | None  # cycles by machine code, if available
    code_coverage: Annotated[float, Meta(ge=0, le=1)] | None  # counted share of the machine code
    fits: bool
    seq_length: Annotated[int, Meta(ge=1, le=1 << 30)]


class ChipResult(Step):
    """Figures of the step on one chip."""

    chip: str
    tokens_per_second_per_core: Rate | None


class SliceResult(Step):
    """Figures of the step on a whole slice."""

    topology: Annotated[str, Meta(pattern=r"^[a-z0-9]+:\d{1,4}(x\d{1,4}){1,2}\Z")]
    tokens_per_second: Rate | None


@dataclass(frozen=True)
class Results:
    """Content of a file of `preflight --output`."""

    chips: list[ChipResult]
    topologies: list[SliceResult] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)  # compiler packages


def load_results(path: str) -> Results:
    """Read a file of `preflight --output`.

    Raises:
        BadInput: no such file, or not a result of `preflight --output`.
    """
    advice = "not a result of `bigbird-ja preflight --output`"
    try:
        return decode.read_json(path, Results, advice)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file: `bigbird-ja preflight --output {path}`") from error


@dataclass(frozen=True)
class Plan:
    """Run to plan, with the results of `preflight` for it."""

    config: Config
    data: Data
    results: Results = Results([], versions=environment.COMPILER)
    preemptions_per_hour: float = 0.25  # of a spot machine, assumed

    @property
    def tokens(self) -> int:
        """Count the positions of all steps, which approximates the tokens (99 %)."""
        steps = self.config.training.num_train_steps
        return steps * tokens_per_step(self.config, self.data)

    @property
    def checkpoint_interval(self) -> float:
        """Return the seconds of training between checkpoints; an hour without saving by time."""
        return 60 * (self.config.checkpoints.save_every_minutes or 60.0)


def tokens_per_step(config: Config, data: Data) -> int:
    """Count positions per optimizer step."""
    return config.training.global_batch_size * data.seq_length


@dataclass(frozen=True)
class MachineRate:
    """Rate of training on a machine, and the source of the figure."""

    tokens_per_second: float  # of the whole machine
    source: str
    fits: bool | None = None  # by preflight; None if it has no entry for the machine


def rate_of(machine: Accelerator, run: Plan) -> MachineRate:
    """Return tokens per second, by preflight if the step was compiled and fits.

    Else by the share of the peak that preflight counts for a base model: by machine code, times
    `REACHED`, if available, else by BigBird's priced cycles. The result for a whole slice includes
    all-reduces, so it has priority over that for one chip.
    """
    rate = _rate(machine, run)
    most = tokens_per_step(run.config, run.data) / MIN_STEP_SECONDS
    if rate.tokens_per_second <= most:
        return rate
    return MachineRate(most, f"{MIN_STEP_SECONDS * 1e3:.0f} ms a step, assumed", rate.fits)


def _rate(machine: Accelerator, run: Plan) -> MachineRate:
    slices = run.results.topologies
    whole = next((s for s in slices if chips.of_topology(s["topology"]) == machine), None)
    chip = next((one for one in run.results.chips if one["chip"] == machine.chip), None)
    if whole and (rate := whole["tokens_per_second"]):
        return _compiled_rate(whole, rate, f"preflight {whole['topology']}")
    if chip and not whole and (rate := chip["tokens_per_second_per_core"]):
        return _compiled_rate(chip, rate * machine.units, "preflight, one chip")
    step = whole or chip
    fits = step.get("fits", True) if step else None
    code_mfu = CODE_MFU[run.config.model.architecture].get(machine.chip)
    share = REACHED * code_mfu if code_mfu else PRICED_MFU[machine.chip]
    basis = f"{REACHED:g} x machine code" if code_mfu else "priced cycles"
    flops = model_flops(run.config, run.data, 1) / run.data.seq_length  # per token
    return MachineRate(machine.peak_flops * share / flops, f"MFU {share:.0%}, {basis}", fits)


def _compiled_rate(step: Step, rate: float, source: str) -> MachineRate:
    """Correct a rate of `preflight`.

    The rates in `preflight`'s results are by priced cycles, which charge several times too much for
    data in fast memory (docs/design/preflight.md). So the rate is by machine code if nearly all of
    the step was counted; that leaves out effects unknown to the compiler, such as memory stalls.
    """
    basis = "priced cycles"
    priced, code = step.get("priced_cycles"), step.get("code_cycles")
    if priced and code and (step.get("code_coverage") or 0.0) >= COUNTED:
        basis = f"{REACHED:g} x machine code"
        rate *= REACHED * priced / code
    return MachineRate(rate, f"{source}, {basis}", step.get("fits", True))


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
    training_hours: float  # without preemptions, saves or restarts
    hours: float | None  # rented hours, including saves, restarts and lost work
    wall_hours: float | None  # including the time between machines; None for free ones, too
    preemptions: float | None
    cost_usd: float | None
    # Minimum and maximum of these, with the rate in its interval, `REACHED_RANGE`.
    hours_range: tuple[float, float] | None
    wall_hours_range: tuple[float, float] | None
    cost_usd_range: tuple[float, float] | None
    fits: bool | None  # by preflight; None without a figure
    divides: bool  # whether devices times accumulation steps divide the global batch
    note: str  # all doubts, in short

    @property
    def is_free(self) -> bool:
        """Return whether the machine costs nothing, as those of Kaggle and Colab."""
        return self.pricing not in PRICINGS


def make_rows(
    runs: Sequence[Plan], prices: Prices, names: Sequence[str] = (), near: str = ""
) -> list[Row]:
    """Return a row per machine and pricing, cheapest first, then those without a price.

    Args:
        runs: consecutive runs on a machine; a row has their sums.
        prices: table of prices; a row has the zones of `launch` and the highest price of them.
        names: names of machines; by default one of each TPU, the slices in the runs' results and
            the free machines.
        near: region of the bucket; see `Prices.usual_zones`.

    Raises:
        BadInput: no such machine.
    """
    machines = [chips.find(name) for name in names or chips.USUAL]
    if not names:
        slices = [one for run in runs for one in run.results.topologies]
        machines += [chips.of_topology(one["topology"]) for one in slices]
    rows = [
        make_row(runs, chips.find(free.machine), provider, (), 0.0, free.note)
        for provider, free in ({} if names else prices.free).items()
    ]
    for machine in dict.fromkeys(machines):
        for pricing in PRICINGS:
            zones, price = prices.usual_zones(machine, pricing, near), None
            with contextlib.suppress(BadInput):  # no price is known
                price = prices.per_hour(machine, pricing, zones)
            rows += [make_row(runs, machine, pricing, zones, price)] if zones else []
    return sorted(rows, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def make_row(
    runs: Sequence[Plan],
    machine: Accelerator,
    pricing: str,
    zones: Sequence[str],
    price: float | None,
    free_note: str = "",
) -> Row:
    """Return the row of a machine at a price in some zones, in US dollars per hour, if known.

    A free machine has its provider as pricing, no zones, and no time of completion, since it is
    available only for some hours at a time.
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
        zone=next(iter(zones), None),
        zones=tuple(zones),
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


def budget_rows(
    run: Plan, about: dict[str, Any], rows: Sequence[Row], budget: float
) -> list[dict[str, Any]]:
    """Compute what a budget buys on each rented machine, most first."""
    shares = [(affordable_share(run, row, budget), row) for row in rows if not row.is_free]
    return [
        {
            **{"accelerator": row.accelerator, "pricing": row.pricing, "share": share},
            **{key: share * about[key] for key in ("steps", "tokens", "epochs")},
        }
        for share, row in sorted(shares, key=lambda pair: -(pair[0] or 0.0))
        if share is not None
    ]


def affordable_share(run: Plan, row: Row, budget: float) -> float | None:
    """Return the share of a run's training that a budget pays for; the inverse of `run_time`.

    Args:
        run: only run of the row.
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


def _times(
    runs: Sequence[Plan], seconds: Sequence[float], slower: float, pricing: str
) -> list[RunTime | None]:
    """Return each run's expected hours, from its seconds of training times `slower`."""
    return [
        run_time(
            slower * each / SECONDS_PER_HOUR,
            run.checkpoint_interval,
            run.preemptions_per_hour if pricing == "spot" else 0.0,
        )
        for each, run in zip(seconds, runs, strict=True)
    ]


def _range(
    extremes: Sequence[list[RunTime | None]], name: str, price: float | None = 1.0
) -> tuple[float, float] | None:
    """Return a figure of `_total` for the fastest and the slowest runs."""
    low, high = (_total(times, name, price) for times in extremes)
    return None if low is None or high is None else (low, high)


def _total(times: Sequence[RunTime | None], name: str, price: float | None = 1.0) -> float | None:
    """Return the sum of a figure over runs, times a price; None if one is unknown."""
    return None if None in times or price is None else sum(map(attrgetter(name), times)) * price


def _indivisible(run: Plan, machine: Accelerator) -> str:
    """Return a note if the devices do not divide the global batch, else ""."""
    training = run.config.training
    parts = machine.devices * training.gradient_accumulation_steps
    batch = training.global_batch_size
    return f"a batch of {batch} does not divide by {parts}" if batch % parts else ""


def cheapest(rows: Sequence[Row]) -> Row | None:
    """Return the cheapest row that can finish, as far as is known; of equal ones the fastest.

    Never a free machine: these have no time of completion.
    """
    able = [
        row
        for row in rows
        if row.divides and row.fits is not False and None not in (row.cost_usd, row.wall_hours)
    ]
    return min(able, key=attrgetter("cost_usd", "wall_hours"), default=None)
