"""From a config and a chip to the figures: trace, compile, count."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.chips import Chip
from bigbird_ja.config import Config
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import model_flops
from bigbird_ja.preflight import breakdown, cycles, flops, hlo, lower, memory
from bigbird_ja.preflight.compile import Compiled, compile_for
from bigbird_ja.storage import outputs

# Largest batch per core that the search tries.
_MOST = 1024
_DUMPED = re.compile(r"step-batch\d+(\.hlo\.pb|\.\w+\.optimized\.hlo)")


@dataclass(frozen=True)
class Settings:
    """How to compile, the same for every module of one command."""

    cache_dir: str | None = None
    timeout: float = 3600.0  # seconds for one module
    dump_dir: str | None = None  # keeps HLO, in and out
    log: Callable[[str], None] = lambda message: None


def batch_per_core(config: Config) -> int:
    """Sequences in one core's micro-batch, by the config.

    Raises:
        BadInput: the global batch does not divide.
    """
    training, cores = config.training, config.tpu.num_cores
    parts = cores * training.gradient_accumulation_steps
    if training.global_batch_size % parts:
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} does not divide by"
            f" tpu.num_cores={cores} x training.gradient_accumulation_steps="
            f"{training.gradient_accumulation_steps}: change one, or say --batch_per_core"
        )
    return training.global_batch_size // parts


def trace(config: Config, batch: int) -> bytes:
    """The train step's HLO.

    Raises:
        BadInput: shapes that the step refuses.
    """
    try:
        return lower.lower_train_step(config, batch)
    except ValueError as error:
        raise BadInput(str(error)) from error


def examine(
    config: Config, chip: Chip, batch: int, settings: Settings, module: bytes | None = None
) -> dict[str, Any]:
    """One chip's results, with the keys of `--json`.

    Args:
        config: completed.
        batch: sequences per core and micro-batch.
        module: the traced step, where the caller has it already.

    Raises:
        BadInput: shapes that the step refuses; the extra is not installed.
        CompilerFailed: the compiler crashed or took too long.
    """
    module = trace(config, batch) if module is None else module
    compiled = compile_for(module, chip, settings.cache_dir, settings.timeout)
    if settings.dump_dir:
        _dump(settings.dump_dir, chip, batch, module, compiled.hlo)
    common = {
        "chip": chip.name,
        "batch_per_core": batch,
        "seq_length": config.data.seq_length,
        "gradient_accumulation_steps": config.training.gradient_accumulation_steps,
        "fits": compiled.shortage is None,
        "hbm_limit_bytes": chip.hbm_bytes,
        "model_flops": _model_flops(config, batch),
    }
    if compiled.shortage is not None:
        return common | _shortage_result(compiled.shortage)
    return common | _figures(config, chip, batch, compiled)


def _model_flops(config: Config, batch: int) -> float:
    return model_flops(config, batch) * config.training.gradient_accumulation_steps


def _figures(config: Config, chip: Chip, batch: int, compiled: Compiled) -> dict[str, Any]:
    module, stats = hlo.parse(compiled.hlo), compiled.stats
    costs = cycles.costs(module)
    estimated = sum(cost.estimated for cost in costs)
    total = sum(cost.cycles for cost in costs)
    seconds = total / chip.clock_hz
    steps = config.training.gradient_accumulation_steps
    tokens = batch * steps * (config.data.seq_length or 0)
    bodies = cycles.looped_bytes(module)
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
        "top_ops": breakdown.top_ops(costs),
        "compiler": stats["compiler"],
    }


def _shortage_result(shortage: memory.Shortage) -> dict[str, Any]:
    """The same keys where the program does not fit: what is unknown is None."""
    unknown = (
        "estimated_cycles", "priced_cycles", "step_ms", "temp_bytes", "argument_bytes", "flops",
        "hbm_traffic_bytes", "mfu", "tokens_per_second_per_core", "unestimated_ops",
    )  # fmt: skip
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


def _dump(directory: str, chip: Chip, batch: int, module: bytes, optimized: str) -> None:
    """Keeps the module that went in (serialized) and the optimised one (text)."""
    outputs.write(storage.join(directory, f"step-batch{batch}.hlo.pb"), module)
    if optimized:
        name = f"step-batch{batch}.{chip.name}.optimized.hlo"
        outputs.write(storage.join(directory, name), optimized.encode())


def is_dump(directory: str) -> bool:
    """Whether a folder holds nothing but what `--dump_hlo` writes."""
    return all(_DUMPED.fullmatch(name) for name in storage.list_tree(directory))
