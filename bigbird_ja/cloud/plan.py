"""What a run takes and costs on each machine, before anything is rented."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.cloud import accelerators, cost
from bigbird_ja.cloud.accelerators import ACCELERATORS, Accelerator
from bigbird_ja.cloud.cost import Overheads
from bigbird_ja.cloud.prices import PRICINGS, Prices
from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import model_flops


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


@dataclass(frozen=True)
class Row:
    """One machine and pricing. `None` where preemptions are too frequent for the run to end."""

    accelerator: str
    pricing: str
    tokens_per_second: float
    rate_source: str
    usd_per_hour: float
    training_hours: float  # without preemptions, saving or restarts
    hours: float | None  # rented: with saves, restarts and lost work
    wall_hours: float | None  # with the time in which there is no TPU
    preemptions: float | None
    compute_usd: float | None
    storage_usd: float | None
    egress_usd: float | None
    cost_usd: float | None
    fits: bool | None  # by preflight; None where it was not asked
    note: str


def estimated_data(config: Config) -> DataFacts:
    """Wiki40b Japanese, as far as its size is known without the data."""
    tokens = cost.WIKI40B_JA_BYTES / cost.BYTES_PER_TOKEN
    length = int(config.data.seq_length or 1)
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


def rates(
    config: Config, preflight_chips: Sequence[Mapping[str, Any]], mfu: float | None
) -> dict[str, Rate]:
    """Tokens per second of each machine: by preflight where it was run, else by assumed MFU.

    Args:
        preflight_chips: entries of `preflight --output`, keys `chip`, `tokens_per_second_per_core`.
        mfu: what the user states for all machines (`--mfu`), or None for the table's own.
    """
    measured = {str(chip["chip"]): chip for chip in preflight_chips}
    per_token = model_flops(config, 1) / int(config.data.seq_length or 1)
    found = {}
    for name, machine in ACCELERATORS.items():
        chip = measured.get(machine.chip)
        per_core = chip.get("tokens_per_second_per_core") if chip else None
        if per_core:
            found[name] = Rate(float(per_core) * machine.devices, "preflight")
        else:
            share = mfu or machine.mfu
            rate = machine.devices * machine.peak_flops * share / per_token
            found[name] = Rate(rate, f"assumed MFU {share:.0%}")
    return found


def make_rows(
    config: Config,
    steps: int,
    data: DataFacts,
    prices: Prices,
    overheads: Overheads,
    *,
    bucket_region: str | None = None,
    zone: str | None = None,
    preflight_chips: Sequence[Mapping[str, Any]] = (),
    mfu: float | None = None,
) -> list[Row]:
    """One row per machine and pricing, cheapest first; rows that never end come last.

    Args:
        steps: optimiser steps to run.
        bucket_region: where data and checkpoints lie, such as `us-central1`; None: beside the TPU.
        zone: where the machine is; None: the first known zone of its type.
    """
    fits = {str(chip["chip"]): bool(chip.get("fits", True)) for chip in preflight_chips}
    found = rates(config, preflight_chips, mfu)
    rows = [
        _row(machine, pricing, config, steps, data, prices, overheads, found[name],
             fits.get(machine.chip), bucket_region, zone)
        for name, machine in ACCELERATORS.items()
        for pricing in PRICINGS
        if pricing in prices.hourly.get(name, {})
    ]  # fmt: skip
    return sorted(rows, key=lambda row: math.inf if row.cost_usd is None else row.cost_usd)


def _row(
    machine: Accelerator,
    pricing: str,
    config: Config,
    steps: int,
    data: DataFacts,
    prices: Prices,
    overheads: Overheads,
    rate: Rate,
    fits: bool | None,
    bucket_region: str | None,
    zone: str | None,
) -> Row:
    training = steps * cost.tokens_per_step(config) / rate.tokens_per_second / cost.SECONDS_PER_HOUR
    time = cost.run_time(training, overheads, preemptible=pricing == "spot")
    per_hour = prices.per_hour(machine.name, pricing)
    compute = storage_usd = egress = total = None
    if time.rented_hours is not None and time.wall_hours is not None:
        compute = time.rented_hours * per_hour
        storage_usd = storage_cost(config, steps, data, time.wall_hours, prices)
        egress = egress_cost(config, steps, data, prices, bucket_region, zone, machine.name)
        total = compute + storage_usd + egress
    notes = [prices.notes.get(machine.name, ""), "" if fits is not False else "does not fit"]
    return Row(
        machine.name, pricing, rate.tokens_per_second, rate.source, per_hour, training,
        time.rented_hours, time.wall_hours, time.preemptions, compute, storage_usd, egress, total,
        fits, "; ".join(note for note in notes if note),
    )  # fmt: skip


def storage_cost(
    config: Config, steps: int, data: DataFacts, wall_hours: float, prices: Prices
) -> float:
    """US dollars for the data set and the kept checkpoints while the run lasts.

    The checkpoints that are kept for good grow evenly over the run: half of them on average.
    """
    last = config.checkpoints.keep_last + 1  # one is being written
    kept = cost.kept_checkpoints(config, steps) - config.checkpoints.keep_last
    stored = data.bytes + cost.checkpoint_bytes(config) * (last + kept / 2)
    return stored / 1e9 * prices.storage_per_gb_month * wall_hours / cost.HOURS_PER_MONTH


def egress_cost(
    config: Config,
    steps: int,
    data: DataFacts,
    prices: Prices,
    bucket_region: str | None,
    zone: str | None,
    machine: str,
) -> float:
    """US dollars for reading every epoch's records from another region; 0 within one region."""
    if bucket_region is None or not data.sequences:
        return 0.0
    zones = (zone,) if zone else accelerators.default_zones(machine) or ("us-central1-a",)
    epochs = steps * config.training.global_batch_size / data.sequences
    return epochs * data.bytes / 1e9 * prices.egress_per_gb(bucket_region, str(zones[0]))


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
