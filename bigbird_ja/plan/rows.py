"""What a run takes and costs on each machine, before anything is rented."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.accelerators import hardware
from bigbird_ja.accelerators.hardware import Machine
from bigbird_ja.accelerators.prices import PRICINGS, Prices
from bigbird_ja.model.flops import model_flops
from bigbird_ja.plan import cost
from bigbird_ja.plan.cost import Overheads
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import first_phase

COUNTED = 0.9  # share of a step that must be counted before its machine code is believed


@dataclass(frozen=True)
class DataFacts:
    """What the plan needs of a data set: measured, or estimated from the corpus we know."""

    sequences: int | None  # train records in one epoch (distinct ones: without static copies)
    bytes: float  # train shards
    assumption: str | None  # None where the figures are a manifest's


@dataclass(frozen=True)
class Rate:
    """How fast a machine trains and how we know."""

    tokens_per_second: float  # of the whole machine
    source: str
    in_first_phase: float | None = None  # on short sequences; None: not known, or there is none


@dataclass(frozen=True)
class Row:
    """One machine and pricing. `None`: not known, or preemptions are too frequent for an end."""

    accelerator: str
    pricing: str  # on_demand, spot, or who lends it for nothing
    zone: str | None  # where that price holds: the cheapest, or `--zone`
    tokens_per_second: float
    rate_source: str
    usd_per_hour: float | None
    training_hours: float  # without preemptions, saving or restarts
    hours: float | None  # rented: with saves, restarts and lost work
    wall_hours: float | None  # with the time in which there is no TPU
    preemptions: float | None
    compute_usd: float | None
    storage_usd: float | None
    egress_usd: float | None
    cost_usd: float | None
    fits: bool | None  # by preflight; None where it was not asked
    divides: bool  # the global batch, over the machine's devices and accumulation steps
    unproven: str  # why the row has to be doubted, or ""
    note: str  # all there is to say, in few words

    @property
    def runs(self) -> bool:
        """Whether training can come to its end on it, as far as is known."""
        return self.hours is not None and self.divides and self.fits is not False


def estimated_data(config: Config) -> DataFacts:
    """Wiki40b Japanese, as far as its size is known without the data."""
    tokens = cost.WIKI40B_JA_BYTES / cost.BYTES_PER_TOKEN
    length = config.make_data.seq_length
    return DataFacts(
        math.ceil(tokens / length),
        tokens * 2.25,  # two bytes per token, and word boundaries
        f"no --data_dir: assuming Wiki40b Japanese, {cost.WIKI40B_JA_BYTES / 1e9:.1f} GB of text at"
        f" {cost.BYTES_PER_TOKEN:.0f} bytes per token, in full sequences of {length}",
    )


def manifest_data(manifest: Any) -> DataFacts:
    """From a data set's manifest; each static copy of a text is a record of the epoch."""
    return DataFacts(
        sum(shard.records for shard in manifest.train_shards),
        float(sum(shard.bytes for shard in manifest.train_shards)),
        None,
    )


@dataclass(frozen=True)
class Figures:
    """What `preflight --output` says: entries of its `chips` and of its `topologies`."""

    chips: Sequence[Mapping[str, Any]] = ()  # `chip`, `fits`, `tokens_per_second_per_core`
    slices: Sequence[Mapping[str, Any]] = ()  # `topology`, `fits`, `tokens_per_second`

    def of(self, machine: Machine) -> tuple[Mapping[str, Any] | None, Rate | None]:
        """The entry for a machine, and how fast it is by that, where it fits.

        A whole slice is compiled with the sums over its devices, so it goes before a single chip.
        """
        for entry in self.slices:
            if hardware.of_topology(str(entry["topology"])) == machine:
                source = f"preflight {entry['topology']}"
                return entry, _rate(entry, "tokens_per_second", 1, source)
        for entry in self.chips:
            if entry["chip"] == machine.chip:
                key, source = "tokens_per_second_per_core", "preflight, one chip"
                return entry, _rate(entry, key, machine.units, source)
        return None, None

    def compiled(self) -> list[Machine]:
        """The slices that were compiled."""
        return [hardware.of_topology(str(entry["topology"])) for entry in self.slices]


def _by_code(entry: Mapping[str, Any]) -> float | None:
    """How many times faster the machine code is than the priced cycles that the rates of
    `preflight` are by; None where less than nearly all of it was counted.

    Priced cycles charge several times too much for what stays in fast memory
    (docs/design/preflight.md), so machine code is taken where there is such a figure. It leaves
    out what no compiler knows, such as stalls of the memory.
    """
    priced, code = entry.get("priced_cycles"), entry.get("code_cycles")
    if priced and code and (entry.get("code_coverage") or 0.0) >= COUNTED:
        return priced / code
    return None


def _rate(entry: Mapping[str, Any], key: str, units: int, source: str) -> Rate | None:
    """The rate of a whole machine of so many units, by one entry of `preflight`."""
    if not entry.get(key):
        return None
    steps = [one for one in (entry, entry.get("first_phase") or {}) if one.get(key)]
    faster, basis = [factor for one in steps if (factor := _by_code(one))], "machine code"
    if len(faster) < len(steps):  # of one kind, as their times are added up
        faster, basis = [1.0] * len(steps), "priced cycles"
    rates = [one[key] * units * factor for one, factor in zip(steps, faster, strict=True)]
    return Rate(rates[0], f"{source}, {basis}", *rates[1:])


def rate_of(machine: Machine, config: Config, figures: Figures, mfu: float | None) -> Rate:
    """Tokens per second: by preflight where it was run, else by an assumed share of the peak.

    Args:
        mfu: what the user states for all machines (`--mfu`), or None for the table's own.
    """
    _, measured = figures.of(machine)
    if measured is not None:
        return measured
    share, phase = mfu or machine.mfu, first_phase(config)
    rates = [
        machine.peak_flops * share * one.make_data.seq_length / model_flops(one, 1)
        for one in (config, phase)
        if one is not None
    ]
    basis = "" if mfu else ", priced cycles"  # the shares of the table are by them
    in_first_phase = rates[1] if phase else None
    return Rate(rates[0], f"assumed MFU {share:.0%}{basis}", in_first_phase)


@dataclass(frozen=True)
class Run:
    """What every row is made from.

    Args:
        steps: optimiser steps to run.
        bucket_region: where data and checkpoints lie, such as `us-central1`; None: beside the TPU.
        zone: where the machine is; None: the cheapest for each.
        mfu: see `rate_of`.
    """

    config: Config
    steps: int
    data: DataFacts
    prices: Prices
    overheads: Overheads
    bucket_region: str | None = None
    zone: str | None = None
    figures: Figures = Figures()
    mfu: float | None = None


def make_rows(run: Run, names: Sequence[str] = (), also: Sequence[str] = ()) -> list[Row]:
    """One row per machine and pricing, cheapest first; what has no price comes last.

    Args:
        names: these alone; without, one machine of each TPU, the slices in `run.figures` and what
            is lent for nothing.
        also: further machines.

    Raises:
        BadInput: a name of no machine.
    """
    wanted = [hardware.find(name) for name in (*(names or hardware.USUAL), *also)]
    rows = []
    if not names:
        wanted += run.figures.compiled()
        rows = [_free_row(run, who) for who in run.prices.free]
    for machine in dict.fromkeys(wanted):
        for pricing in PRICINGS:
            for zone, price in _best_offer(run, machine, pricing):
                rows.append(_row(run, machine, pricing, zone, price))
    return sorted(rows, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def _best_offer(run: Run, machine: Machine, pricing: str) -> list[tuple[str | None, float | None]]:
    """The zone and its US dollars per hour; nothing where the machine is not to be had so."""
    if machine.name in hardware.GPUS:
        return [(run.zone, price)] if (price := _gpu_price(run, machine, pricing)) else []
    offers = run.prices.by_zone(machine.name, pricing)
    if run.zone is not None:
        return [(zone, price) for zone, price in offers if zone == run.zone]
    if run.bucket_region is not None:  # beside the data, where that can be
        offers.sort(key=lambda offer: run.prices.egress_per_gb(str(run.bucket_region), offer[0]))
    priced = [offer for offer in offers if offer[1] is not None]
    return list((priced or offers)[:1])


def _gpu_price(run: Run, machine: Machine, pricing: str) -> float | None:
    return run.prices.gpus.get(machine.name, {}).get(pricing)


def _row(run: Run, machine: Machine, pricing: str, zone: str | None, price: float | None) -> Row:
    rate = rate_of(machine, run.config, run.figures, run.mfu)
    training = _training_hours(run, rate)
    time = cost.run_time(training, run.overheads, preemptible=pricing == "spot")
    compute = storage_usd = egress = total = None
    if price is not None and time.rented_hours is not None and time.wall_hours is not None:
        compute = time.rented_hours * price
        storage_usd = storage_cost(run, time.wall_hours)
        egress = egress_cost(run, zone)
        total = compute + storage_usd + egress
    unknown = "" if price is not None else "no price is known: --prices"
    return Row(
        machine.name, pricing, zone, rate.tokens_per_second, rate.source, price, training,
        time.rented_hours, time.wall_hours, time.preemptions, compute, storage_usd, egress, total,
        **_doubts(run, machine, run.prices.notes.get(machine.name, ""), unknown),
    )  # fmt: skip


def _free_row(run: Run, who: str) -> Row:
    """A machine that is lent for nothing: how long it takes in all, but not when it is done, since
    the hours a week are the lender's."""
    free = run.prices.free[who]
    machine = hardware.find(free.machine)
    rate = rate_of(machine, run.config, run.figures, run.mfu)
    training = _training_hours(run, rate)
    time = cost.run_time(training, run.overheads, preemptible=False)
    return Row(
        machine.name, who, None, rate.tokens_per_second, rate.source, 0.0, training,
        time.rented_hours, None, None, 0.0, 0.0, 0.0, 0.0, **_doubts(run, machine, free.note),
    )  # fmt: skip


def _training_hours(run: Run, rate: Rate) -> float:
    short = min(run.steps, run.config.training.first_seq_length_steps or 0)
    tokens = cost.tokens_per_step(run.config)  # the same in both phases
    seconds = tokens * short / (rate.in_first_phase or rate.tokens_per_second)
    seconds += tokens * (run.steps - short) / rate.tokens_per_second
    return seconds / cost.SECONDS_PER_HOUR


def _doubts(run: Run, machine: Machine, *notes: str) -> dict[str, Any]:
    """What speaks against a row: the last fields of `Row`."""
    entry, _ = run.figures.of(machine)
    fits = None if entry is None else bool(entry.get("fits", True))
    training = run.config.training
    parts = machine.devices * training.gradient_accumulation_steps
    divides = training.global_batch_size % parts == 0
    said = (
        "" if fits is not False else "does not fit",
        "" if divides else f"a batch of {training.global_batch_size} does not divide by {parts}",
        f"{machine.hosts} hosts" if machine.hosts > 1 else "",
        *notes,
        "unproven" if machine.unproven else "",
    )
    note = "; ".join(filter(None, said))
    return {"fits": fits, "divides": divides, "unproven": machine.unproven, "note": note}


def storage_cost(run: Run, wall_hours: float) -> float:
    """US dollars for the data set and the kept checkpoints while the run lasts.

    The checkpoints that are kept for good grow evenly over the run: half of them on average.
    """
    keep = run.config.checkpoints.keep_last
    kept = cost.kept_checkpoints(run.config, run.steps) - keep
    checkpoints = keep + 1 + kept / 2  # one is being written
    stored = run.data.bytes + cost.checkpoint_bytes(run.config) * checkpoints
    return stored / 1e9 * run.prices.storage_per_gb_month * wall_hours / cost.HOURS_PER_MONTH


def egress_cost(run: Run, zone: str | None) -> float:
    """US dollars for reading every epoch's records from another region; 0 within one region."""
    if run.bucket_region is None or zone is None or not run.data.sequences:
        return 0.0
    epochs = run.steps * run.config.training.global_batch_size / run.data.sequences
    return epochs * run.data.bytes / 1e9 * run.prices.egress_per_gb(run.bucket_region, zone)


def steps_for(
    config: Config, token_budget: float | None, epochs: float | None, data: DataFacts
) -> int:
    """Steps to a token budget, to a number of epochs, or the config's own.

    Raises:
        BadInput: epochs of a data set whose size nobody knows.
    """
    if token_budget is not None:
        return max(1, math.ceil(token_budget / cost.tokens_per_step(config)))
    if epochs is not None:
        if not data.sequences:
            raise BadInput("--epochs needs --data_dir")
        return max(1, math.ceil(epochs * data.sequences / config.training.global_batch_size))
    return config.training.num_train_steps


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as `--json` prints them."""
    return [dataclasses.asdict(row) for row in rows]
