"""From a config and a chip or slice to the figures: trace, compile, count."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.model.flops import model_flops
from bigbird_ja.preflight import (
    breakdown,
    code_figures,
    collectives,
    cycles,
    flops,
    hlo,
    memory,
    roofline,
)
from bigbird_ja.preflight.compile import Compiled, compile_for
from bigbird_ja.preflight.targets import Target
from bigbird_ja.preflight.waits import waits
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions
from bigbird_ja.storage import outputs
from bigbird_ja.train.lowered import LoweredStep

# Largest batch per core that the search tries.
_MOST = 1024
_DUMPED = re.compile(
    r"step-batch\d+(\.hlo\.pb|\.[\w-]+\.(gradients\.hlo\.pb|update\.hlo\.pb|optimized\.hlo))"
)


_SLICE_KEYS = (
    "tokens_per_second", "collectives", "collective_bytes", "collective_cycles",
    "collective_link_ms",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How to compile, the same for every module of one command."""

    cache_dir: str | None = None
    timeout: float = 3600.0  # seconds for one module
    dump_dir: str | None = None  # keeps HLO, in and out
    log: Callable[[str], None] = lambda message: None
    machine_code: bool = False  # asks for cycles by machine code too, where there are any


def batch_per_core(config: Config, cores: int | None = None) -> int:
    """Sequences in one device's micro-batch, by the config.

    Args:
        cores: devices of a slice; without, those of the config.

    Raises:
        BadInput: the global batch does not divide.
    """
    training = config.training
    count = cores or config.tpu.num_cores
    parts = count * training.gradient_accumulation_steps
    if training.global_batch_size % parts:
        where = f"{count} devices" if cores else f"tpu.num_cores={count}"
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} does not divide by"
            f" {where} x training.gradient_accumulation_steps="
            f"{training.gradient_accumulation_steps}: change one, or say --batch_per_core"
        )
    return training.global_batch_size // parts


def trace(config: Config, batch: int, devices: int = 1) -> LoweredStep:
    """The step that `pretrain --engine=pjrt` runs on that many devices.

    Raises:
        BadInput: shapes that the step refuses.
    """
    from bigbird_ja.train.program import Program

    sequences = batch * config.training.gradient_accumulation_steps
    try:
        return Program(config, sequences, devices).lower()
    except ValueError as error:
        raise BadInput(str(error)) from error


def examine(
    config: Config, target: Target, batch: int, settings: Settings, step: LoweredStep | None = None
) -> dict[str, Any]:
    """One target's results, with the keys of `--json`.

    Args:
        config: completed.
        batch: sequences per device and micro-batch.
        step: traced for as many devices, where the caller has it already.

    Raises:
        BadInput: shapes that the step refuses; the extra is not installed.
        CompilerFailed: the compiler crashed or took too long.
    """
    step = trace(config, batch, target.devices) if step is None else step
    compiled = compile_for(
        step, target, settings.cache_dir, settings.timeout, settings.machine_code
    )
    if settings.dump_dir:
        _dump(settings.dump_dir, target, batch, step, compiled.hlo)
    common = {
        **({"topology": target.name, "devices": target.devices} if target.is_slice else {}),
        "chip": target.chip.name,
        "attention_implementation": config.model.attention_implementation,
        "batch_per_core": batch,
        "seq_length": config.make_data.seq_length,
        "predictions_per_seq": train_predictions(config),
        "gradient_accumulation_steps": config.training.gradient_accumulation_steps,
        "fits": compiled.shortage is None,
        "hbm_limit_bytes": target.chip.hbm_bytes,
        "model_flops": _model_flops(config, batch),
    }
    if compiled.shortage is not None:
        return common | _shortage_result(compiled.shortage, target)
    return common | _figures(config, target, batch, compiled)


def _model_flops(config: Config, batch: int) -> float:
    return model_flops(config, batch) * config.training.gradient_accumulation_steps


def _figures(config: Config, target: Target, batch: int, compiled: Compiled) -> dict[str, Any]:
    module, stats, chip = hlo.parse(compiled.hlo), compiled.stats, target.chip
    costs = cycles.costs(module)
    estimated = sum(cost.estimated for cost in costs)
    total = sum(cost.cycles for cost in costs)
    seconds = total / chip.clock_hz
    steps = config.training.gradient_accumulation_steps
    tokens = batch * steps * config.make_data.seq_length
    bodies = cycles.looped_bytes(module)
    code = roofline.code_costs(module, costs, compiled.code, chip) if compiled.code else []
    by_code = dict.fromkeys(code_figures.KEYS)
    if code:
        by_code = code_figures.figures(code, waits(module, code, chip))
    return {
        "estimated_cycles": round(estimated),
        "priced_cycles": round(total),
        "step_ms": seconds * 1e3,
        "temp_bytes": stats["temp_bytes"],
        "argument_bytes": stats["argument_bytes"],
        "output_bytes": stats["output_bytes"],
        "alias_bytes": stats["alias_bytes"],
        "hbm_peak_bytes": memory.peak(
            stats["temp_bytes"],
            stats["argument_bytes"],
            stats["output_bytes"],
            stats["alias_bytes"],
        ),
        "flops": stats["flops"] + flops.looped_matmul_flops(module),
        "hbm_traffic_bytes": stats["bytes_accessed"] + bodies,
        "mfu": _model_flops(config, batch) / (seconds * chip.peak_flops),
        "tokens_per_second_per_core": tokens / seconds,
        "unestimated_ops": sum(cost.trips for cost in costs if cost.priced),
        "loops_of_unknown_length": not all(cost.trips_known for cost in costs),
        "by_kind": {kind: round(value) for kind, value in breakdown.by_kind(costs).items()},
        "by_layer": {layer: round(value) for layer, value in breakdown.by_layer(costs).items()},
        "top_ops": breakdown.top_ops(costs, code=code),
        **by_code,
        "compiler": stats["compiler"],
        **(_of_slice(costs, target, tokens / seconds) if target.is_slice else {}),
    }


def _of_slice(costs: Sequence[cycles.Cost], target: Target, rate: float) -> dict[str, Any]:
    """What only a slice has: its whole rate, and what goes between its devices."""
    between = [cost for cost in costs if cost.collective]
    carried = sum(
        collectives.link_bytes(str(cost.collective), cost.moved_bytes, target.devices)
        for cost in between
    )
    return {
        "tokens_per_second": rate * target.devices,
        "collectives": sum(cost.trips for cost in between),
        "collective_bytes": round(sum(cost.moved_bytes for cost in between)),
        "collective_cycles": round(sum(cost.cycles for cost in between)),
        "collective_link_ms": carried / target.chip.link_bytes_per_second * 1e3,
    }


def _shortage_result(shortage: memory.Shortage, target: Target) -> dict[str, Any]:
    """The same keys where the program does not fit: what is unknown is None."""
    unknown: tuple[str, ...] = (
        "estimated_cycles", "priced_cycles", "step_ms", "temp_bytes", "argument_bytes", "flops",
        "hbm_traffic_bytes", "mfu", "tokens_per_second_per_core", "unestimated_ops",
    )  # fmt: skip
    unknown += code_figures.KEYS
    if target.is_slice:
        unknown += _SLICE_KEYS
    return {
        **dict.fromkeys(unknown),
        "hbm_peak_bytes": shortage.used or None,
        "top_ops": [],
        "largest_buffers": [
            {"bytes": buffer.size, "op": buffer.op_name, "shape": buffer.shape}
            for buffer in shortage.largest
        ],
    }


def largest_batch(measure: Callable[[int], dict[str, Any]], first: dict[str, Any]) -> int:
    """The largest batch per core that fits, 0 where one sequence does not.

    Each try compiles the whole step, so tries are chosen by extrapolating the peak, which grows by
    about the same amount with each sequence.

    Args:
        measure: the result for a batch; asked at most once for each.
        first: the result for the batch that was asked for.
    """
    results = {int(first["batch_per_core"]): first}
    while True:
        fitting = [b for b, r in results.items() if r["fits"]]
        failing = [b for b, r in results.items() if not r["fits"]]
        low, high = max(fitting, default=0), min(failing, default=_MOST + 1)
        if high - low <= 1:
            return low
        guess = _guess(results, low, high)
        results[guess] = measure(guess)


def _guess(results: dict[int, dict[str, Any]], low: int, high: int) -> int:
    """The next batch to try, strictly between `low` and `high`."""
    peaks = {b: r["hbm_peak_bytes"] for b, r in results.items() if r["hbm_peak_bytes"]}
    limit = next(iter(results.values()))["hbm_limit_bytes"]
    nearest = sorted(peaks, key=lambda b: abs(peaks[b] - limit))[:2]
    guess = (low + high) // 2 if high <= _MOST else max(2 * low, 1)
    if len(nearest) == 2:
        a, b = nearest
        slope = (peaks[b] - peaks[a]) / (b - a)
        if slope > 0:
            guess = int(a + (limit - peaks[a]) / slope)
            # An estimate that repeats a known end must move to the other side of it.
            guess = guess + 1 if guess <= low else guess
    return min(max(guess, low + 1), high - 1)


def _dump(directory: str, target: Target, batch: int, step: LoweredStep, optimized: str) -> None:
    """Keeps both functions that went in (serialized) and the optimised program (text)."""
    prefix = f"step-batch{batch}.{target.name.replace(':', '-')}"
    for name, traced in (("gradients", step.gradients), ("update", step.update)):
        outputs.write(storage.join(directory, f"{prefix}.{name}.hlo.pb"), traced.hlo)
    if optimized:
        outputs.write(storage.join(directory, f"{prefix}.optimized.hlo"), optimized.encode())


def is_dump(directory: str) -> bool:
    """Whether a folder holds nothing but what `--dump_hlo` writes."""
    return all(_DUMPED.fullmatch(name) for name in storage.list_tree(directory))
