"""Computes tokens, hours and money of a run, a row for each machine and pricing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bigbird_ja import accelerators
from bigbird_ja.accelerators import Accelerator
from bigbird_ja.accelerators.prices import PRICINGS, Prices
from bigbird_ja.model.params import count_state
from bigbird_ja.plan.hours import (
    HERE,
    NO_FIGURES,
    SECONDS_PER_HOUR,
    Figures,
    Overheads,
    Rate,
    RunTime,
    rate_of,
    run_time,
    tokens_per_step,
)
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config

HOURS_PER_MONTH = 730.0

# Wiki40b Japanese (TFDS wiki40b/ja, train split) as our background states it, and what the 2021
# tokenizer makes of it. Used only where there is no data set, and printed as an assumption.
WIKI40B_JA_BYTES = 1.9e9
BYTES_PER_TOKEN = 6.0  # Japanese UTF-8 text in a vocabulary of 32,000 pieces: two characters


@dataclass(frozen=True)
class DataFacts:
    """The size of a data set: measured, or estimated from a known corpus."""

    sequences: int | None  # train records in one epoch (distinct ones: without static copies)
    bytes: float  # train shards
    assumption: str | None  # None where the figures are a manifest's


def estimated_data(data: Data) -> DataFacts:
    """Estimate Wiki40b Japanese, as far as its size is known without the data."""
    tokens = WIKI40B_JA_BYTES / BYTES_PER_TOKEN
    length = data.seq_length
    return DataFacts(
        math.ceil(tokens / length),
        tokens * 2.25,  # two bytes per token, and word boundaries
        f"no --data_dir: assuming Wiki40b Japanese, {WIKI40B_JA_BYTES / 1e9:.1f} GB of text at"
        f" {BYTES_PER_TOKEN:.0f} bytes per token, in full sequences of {length}",
    )


def manifest_data(manifest: Any) -> DataFacts:
    """Sum up a data set's manifest; each static copy of a text is a record of the epoch."""
    shards = manifest.train_shards
    return DataFacts(
        sum(shard.records for shard in shards), float(sum(shard.bytes for shard in shards)), None
    )


@dataclass(frozen=True)
class Plan:
    """The inputs of every row.

    Args:
        steps: optimiser steps to run.
        bucket_region: where data and checkpoints lie, such as `us-central1`; None: beside the TPU.
        zones: where the machine may be; empty: the cheapest for each.
        mfu: see `rate_of`.
    """

    config: Config
    data: Data
    steps: int
    epoch: DataFacts
    prices: Prices
    overheads: Overheads
    bucket_region: str | None = None
    zones: Sequence[str] = ()
    figures: Figures = NO_FIGURES
    mfu: float | None = None
    here: float | None = None  # FLOP/s of this machine's matrix products; None: no row for it


_SUMMED = (
    *("training_hours", "hours", "wall_hours", "preemptions"),
    *("compute_usd", "storage_usd", "egress_usd", "cost_usd"),
)


@dataclass(frozen=True)
class Row:
    """One machine and pricing. `None`: not known, or preemptions are too frequent to finish."""

    accelerator: str
    pricing: str  # on_demand, spot, or the provider of a free machine
    zone: str | None  # where that price holds: the cheapest, or the cheapest of `--zones`
    tokens_per_second: float
    rate_source: str
    usd_per_hour: float | None
    training_hours: float  # without preemptions, saving or restarts
    hours: float | None  # rented: with saves, restarts and lost work
    wall_hours: float | None  # with the time between machines
    preemptions: float | None
    compute_usd: float | None
    storage_usd: float | None
    egress_usd: float | None
    cost_usd: float | None
    fits: bool | None  # by preflight; None where there is no figure
    divides: bool  # the global batch, over the machine's devices and accumulation steps
    unproven: str  # why the row is in doubt, or ""
    note: str  # all doubts, in a few words

    @property
    def runs(self) -> bool:
        """Tell whether training can finish on it, as far as is known."""
        return self.hours is not None and self.divides and self.fits is not False


def make_rows(run: Plan, names: Sequence[str] = ()) -> list[Row]:
    """Make one row per machine and pricing, cheapest first; those without a price come last.

    Args:
        run: the plan.
        names: these machines only; by default one of each TPU, the slices in `run.figures` and
            the free machines.

    Raises:
        BadInput: no machine has that name.
    """
    machines = [accelerators.find(name) for name in names or accelerators.USUAL]
    rows = []
    if not names:
        machines += [accelerators.of_topology(str(one["topology"])) for one in run.figures.slices]
        rows = [
            _row(run, accelerators.find(free.machine), provider, None, 0.0, free.note)
            for provider, free in run.prices.free.items()
        ]
        if run.here:
            here = Accelerator("this machine", "", 1, 1, 1, run.here, HERE, "")
            rows.append(_row(run, here, "here", None, 0.0, ""))
    for machine in dict.fromkeys(machines):
        for pricing in PRICINGS:
            for zone, price in _best_offer(run, machine, pricing):
                rows.append(_row(run, machine, pricing, zone, price))
    return sorted(rows, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def add_rows(parts: Sequence[Sequence[Row]], tokens: Sequence[int]) -> list[Row]:
    """Add up runs that follow each other, for the machines and pricings that all have.

    Args:
        parts: the rows of each run.
        tokens: of each run.

    Returns:
        The sums, cheapest first; None where a part is not known.
    """
    if len(parts) == 1:
        return [*parts[0]]
    by_machine = [{(row.accelerator, row.pricing): row for row in rows} for rows in parts]
    everywhere = [key for key in by_machine[0] if all(key in rows for rows in by_machine)]
    sums = [_add([rows[key] for rows in by_machine], sum(tokens)) for key in everywhere]
    return sorted(sums, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def _add(rows: Sequence[Row], tokens: int) -> Row:
    """Add up the rows of one machine and pricing."""

    def total(field: str) -> float | None:
        values = [getattr(row, field) for row in rows]
        return None if None in values else sum(values)

    def words(field: str) -> str:
        return "; ".join(filter(None, dict.fromkeys(getattr(row, field) for row in rows)))

    hours = sum(row.training_hours for row in rows)
    sums: dict[str, Any] = {name: total(name) for name in _SUMMED}
    return replace(
        rows[0],
        **sums,
        tokens_per_second=tokens / hours / SECONDS_PER_HOUR,
        rate_source=words("rate_source"),
        fits=None if None in (fits := [row.fits for row in rows]) else all(fits),
        divides=all(row.divides for row in rows),
        note=words("note"),
    )


def _best_offer(run: Plan, machine: Accelerator, pricing: str) -> list[tuple[str, float | None]]:
    """Choose the zone and its US dollars per hour; empty where the machine is not offered so."""
    offers = run.prices.by_zone(machine.name, pricing)
    offers = [offer for offer in offers if not run.zones or offer[0] in run.zones]
    if run.bucket_region is not None:  # beside the data, where that can be
        offers.sort(key=lambda offer: run.prices.egress_per_gb(str(run.bucket_region), offer[0]))
    priced = [offer for offer in offers if offer[1] is not None]
    return (priced or offers)[:1]


def _row(
    run: Plan,
    machine: Accelerator,
    pricing: str,
    zone: str | None,
    price: float | None,
    free_note: str | None = None,
) -> Row:
    """Make one row.

    Args:
        run: the plan.
        machine: the TPU slice.
        pricing: on_demand, spot, or the provider of a free machine.
        zone: of that price.
        price: US dollars per hour, where it is known.
        free_note: of a free machine, for which there is no date of completion: its provider
            limits the hours per week.
    """
    rate = rate_of(machine, run.config, run.data, run.figures, run.mfu)
    training = training_hours(run, rate)
    time = run_time(training, run.overheads, preemptible=pricing == "spot")
    is_dated = time is not None and free_note is None
    batch = run.config.training.global_batch_size
    parts = machine.devices * run.config.training.gradient_accumulation_steps
    doubts = (
        "" if rate.fits is not False else "does not fit",
        "" if batch % parts == 0 else f"a batch of {batch} does not divide by {parts}",
        f"{machine.hosts} hosts" if machine.hosts > 1 else "",
        free_note or "",
        "" if price is not None else "no price is known: --price_file",
    )
    return Row(
        accelerator=machine.name,
        pricing=pricing,
        zone=zone,
        tokens_per_second=rate.tokens_per_second,
        rate_source=rate.source,
        usd_per_hour=price,
        training_hours=training,
        hours=time.rented_hours if time else None,
        wall_hours=time.wall_hours if time and is_dated else None,
        preemptions=time.preemptions if time and is_dated else None,
        **_money(run, zone, price, time, free_note is not None),
        fits=rate.fits,
        divides=batch % parts == 0,
        unproven=machine.unproven,
        note="; ".join(filter(None, doubts)),
    )


def _money(
    run: Plan, zone: str | None, price: float | None, time: RunTime | None, is_free: bool
) -> dict[str, Any]:
    """Compute US dollars; None where they are not known."""
    parts: dict[str, Any] = dict.fromkeys(("compute_usd", "storage_usd", "egress_usd"))
    if is_free:
        parts = dict.fromkeys(parts, 0.0)
    elif price is not None and time is not None:
        usd = (
            time.rented_hours * price,
            _storage_usd(run, time.wall_hours),
            _egress_usd(run, zone),
        )
        parts = dict(zip(parts, usd, strict=True))
    return {**parts, "cost_usd": None if None in parts.values() else sum(parts.values())}


def training_hours(run: Plan, rate: Rate) -> float:
    """Compute hours of training alone."""
    tokens = tokens_per_step(run.config, run.data) * run.steps
    return tokens / rate.tokens_per_second / SECONDS_PER_HOUR


def _storage_usd(run: Plan, wall_hours: float) -> float:
    """Price the data set and the kept checkpoints while the run lasts.

    A checkpoint is the state in float32. Those that are never deleted grow evenly over the run:
    half of them on average.
    """
    checkpoints = run.config.checkpoints
    every = checkpoints.keep_every_steps
    forever = run.steps // every if every else 0
    count = checkpoints.keep_last + 1 + forever / 2  # one is being written
    stored = run.epoch.bytes + 4 * count_state(run.config, run.data) * count
    return stored / 1e9 * run.prices.storage_per_gb_month * wall_hours / HOURS_PER_MONTH


def _egress_usd(run: Plan, zone: str | None) -> float:
    """Price the reading of every epoch's records from another region; 0 within one region."""
    if run.bucket_region is None or zone is None or not run.epoch.sequences:
        return 0.0
    epochs = run.steps * run.config.training.global_batch_size / run.epoch.sequences
    return epochs * run.epoch.bytes / 1e9 * run.prices.egress_per_gb(run.bucket_region, zone)


def steps_for(
    config: Config,
    data: Data,
    token_budget: float | None,
    epochs: float | None,
    epoch: DataFacts,
) -> int:
    """Compute the steps to a token budget, to a number of epochs, or the config's.

    Raises:
        BadInput: epochs of a data set of unknown size.
    """
    if token_budget is not None:
        return max(1, math.ceil(token_budget / tokens_per_step(config, data)))
    if epochs is not None:
        if not epoch.sequences:
            raise BadInput("--epochs needs --data_dir")
        return max(1, math.ceil(epochs * epoch.sequences / config.training.global_batch_size))
    return config.training.num_train_steps
