"""Traces, compiles and counts a config's step for a chip or slice."""

from collections.abc import Callable
from typing import Any

from bigbird_ja import storage
from bigbird_ja.accelerators import Chip
from bigbird_ja.model import pattern
from bigbird_ja.model.params import model_flops
from bigbird_ja.preflight import breakdown, costs, hlo, roofline
from bigbird_ja.preflight.compile import Compiled, CompileOptions, compile_for
from bigbird_ja.preflight.targets import Target
from bigbird_ja.process.console import waiting
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train.engines.lowering import LoweredStep

# Steps by batch, devices and attention implementation.
Traced = dict[tuple[int, int, str], LoweredStep]
_LARGEST_TRIED = 1024  # batch per core
DUMP = "compiled programs"  # kind of the folder of `--dump_hlo`
# Keys of a result that are None where the program does not fit.
_KEYS = (
    "estimated_cycles priced_cycles step_ms temp_bytes argument_bytes flops hbm_traffic_bytes mfu"
    " tokens_per_second_per_core unestimated_ops"
)
_SLICE_KEYS = "tokens_per_second collectives collective_bytes collective_cycles collective_link_ms"


def batch_per_core(config: Config, target: Target) -> int:
    """Divide the global batch by devices and accumulation: sequences in one micro-batch.

    Devices are those of the slice, or the cores in the config.

    Raises:
        BadInput: the global batch does not divide.
    """
    batch = config.training.global_batch_size
    accumulated = config.training.gradient_accumulation_steps
    count = target.devices if target.is_slice else config.tpu.num_cores
    if batch % (count * accumulated):
        where = f"--topology {target.name}: " if target.is_slice else ""
        divisor = f"{count} devices" if target.is_slice else f"tpu.num_cores={count}"
        raise BadInput(
            f"{where}training.global_batch_size={batch} does not divide by {divisor} x"
            f" training.gradient_accumulation_steps={accumulated}: change one, or pass"
            " --batch_per_core"
        )
    return batch // (count * accumulated)


def check_length(config: Config, data: Data) -> None:
    """Refuses a sequence length that attention cannot be computed for, before anything is traced.

    Raises:
        BadInput: naming the nearest lengths that fit.
    """
    try:
        pattern.is_full(config, data.seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error


def trace(config: Config, data: Data, batch: int, devices: int = 1) -> LoweredStep:
    """Trace the step that `pretrain --engine pjrt` runs on that many devices.

    Of one device, its part of the step that runs on `tpu.num_cores`.

    Raises:
        BadInput: shapes that the step refuses.
    """
    from bigbird_ja.train.engines.lowering.program import Program

    sequences = batch * config.training.gradient_accumulation_steps
    priced_as_one_of = config.tpu.num_cores if devices == 1 else 1
    try:
        return Program(config, data, sequences, devices, priced_as_one_of).lower()
    except ValueError as error:
        raise BadInput(str(error)) from error


def examine(
    config: Config,
    data: Data,
    target: Target,
    batch: int,
    options: CompileOptions,
    traced: Traced | None = None,
) -> dict[str, Any]:
    """Return one target's results, with the keys of `--json`.

    Args:
        config: of the run.
        data: of the run.
        target: one device or a slice.
        batch: sequences per device and micro-batch.
        options: of the compilation.
        traced: programs so far; one that is missing is traced and added.

    Raises:
        BadInput: shapes that the step refuses; the extra is not installed.
        CompilerFailed: the compiler crashed or took too long.
    """
    traced = {} if traced is None else traced
    key = batch, target.devices, config.model.attention_implementation
    if key not in traced:
        with waiting(f"tracing {config.model.num_layers} layers, {batch} sequences per core"):
            traced[key] = trace(config, data, batch, target.devices)
    takes = "minutes, and some 7.5 GB of memory for a base model"
    with waiting(f"compiling {batch} sequences per core for {target.name} ({takes})"):
        compiled = compile_for(traced[key], target, options)
    if options.dump_dir:
        _dump(options.dump_dir, target, batch, traced[key], compiled.hlo)
    return _figures(config, data, target, batch, compiled)


def _figures(
    config: Config, data: Data, target: Target, batch: int, compiled: Compiled
) -> dict[str, Any]:
    accumulated = config.training.gradient_accumulation_steps
    common: dict[str, Any] = {
        **({"topology": target.name, "devices": target.devices} if target.is_slice else {}),
        "chip": target.chip.name,
        "attention_implementation": config.model.attention_implementation,
        "batch_per_core": batch,
        "seq_length": data.seq_length,
        "predictions_per_seq": train_predictions(config, data),
        "gradient_accumulation_steps": accumulated,
        "fits": compiled.shortage is None,
        "hbm_limit_bytes": target.chip.hbm_bytes,
        "model_flops": model_flops(config, data, batch) * accumulated,
    }
    if compiled.shortage is not None:
        keys = [*_KEYS.split(), *breakdown.CODE_KEYS, *_SLICE_KEYS.split() * target.is_slice]
        used, largest = compiled.shortage.used or None, compiled.shortage.largest
        missing = dict.fromkeys(keys) | {"top_ops": []}
        return common | missing | {"hbm_peak_bytes": used, "largest_buffers": largest}
    module = hlo.parse(compiled.hlo)
    priced = costs.costs(module)
    tokens = batch * accumulated * data.seq_length
    figures = _priced(target, tokens, common["model_flops"], module, priced, compiled.stats)
    figures |= _by_code(module, priced, compiled, target.chip)
    if target.is_slice:
        figures |= _between_devices(target, figures, priced)
    return common | figures


def _priced(
    target: Target,
    tokens: int,
    flops_of_model: float,
    module: hlo.Module,
    priced: list[costs.Cost],
    stats: dict[str, Any],
) -> dict[str, Any]:
    """Return the figures by priced cycles, of one device and step."""
    total = sum(cost.cycles for cost in priced)
    seconds = total / target.chip.clock_hz
    looped_flops, looped_bytes = costs.looped_work(module, priced)
    sizes = ("temp_bytes", "argument_bytes", "output_bytes", "alias_bytes")
    return {
        "estimated_cycles": round(sum(cost.estimated for cost in priced)),
        "priced_cycles": round(total),
        "step_ms": seconds * 1e3,
        **{size: stats[size] for size in sizes},
        # An output that reuses its argument's buffer counts once.
        "hbm_peak_bytes": sum(stats[size] for size in sizes[:3]) - stats["alias_bytes"],
        "flops": stats["flops"] + looped_flops,
        "hbm_traffic_bytes": stats["bytes_accessed"] + looped_bytes,
        "mfu": flops_of_model / (seconds * target.chip.peak_flops),
        "tokens_per_second_per_core": tokens / seconds,
        "unestimated_ops": sum(cost.trips for cost in priced if cost.priced),
        "loops_of_unknown_length": not all(cost.trips_known for cost in priced),
        "by_kind": breakdown.by_kind(priced),
        "compiler": stats["compiler"],
    }


def _by_code(
    module: hlo.Module, priced: list[costs.Cost], compiled: Compiled, chip: Chip
) -> dict[str, Any]:
    """Return the figures by machine code, where there is any, and the costliest ops."""
    code = roofline.code_costs(module, priced, compiled.code, chip) if compiled.code else []
    reason = roofline.not_counted(code)
    code = [] if reason else code
    figures: dict[str, Any] = dict.fromkeys(breakdown.CODE_KEYS)
    if code:
        figures = breakdown.code_figures(code, roofline.step_time(module, code, chip))
    return figures | {
        "code_not_counted": reason,
        "top_ops": breakdown.top_ops(priced, code=code),
    }


def _between_devices(
    target: Target, figures: dict[str, Any], priced: list[costs.Cost]
) -> dict[str, Any]:
    """Return a slice's own figures."""
    between = [cost for cost in priced if cost.collective]
    carried = sum(
        costs.link_bytes(str(cost.collective), cost.moved_bytes, target.devices) for cost in between
    )
    return {
        "tokens_per_second": figures["tokens_per_second_per_core"] * target.devices,
        "collectives": sum(cost.trips for cost in between),
        "collective_bytes": round(sum(cost.moved_bytes for cost in between)),
        "collective_cycles": round(sum(cost.cycles for cost in between)),
        "collective_link_ms": carried / target.chip.link_bytes_per_second * 1e3,
    }


def largest_batch(measure: Callable[[int], dict[str, Any]], first: dict[str, Any]) -> int:
    """Find the largest batch per core that fits; 0 where one sequence does not.

    Each try compiles the whole step, so tries are chosen by extrapolating the peak, which grows by
    about the same amount with each sequence.

    Args:
        measure: the result for a batch; called at most once for each.
        first: the result for some batch.
    """
    results = {int(first["batch_per_core"]): first}
    while True:
        fitting = [b for b, r in results.items() if r["fits"]]
        failing = [b for b, r in results.items() if not r["fits"]]
        low, high = max(fitting, default=0), min(failing, default=_LARGEST_TRIED + 1)
        if high - low <= 1:
            return low
        guess = _guess(results, low, high)
        results[guess] = measure(guess)


def _guess(results: dict[int, dict[str, Any]], low: int, high: int) -> int:
    """Choose the next batch to try, strictly between `low` and `high`."""
    peaks = {b: r["hbm_peak_bytes"] for b, r in results.items() if r["hbm_peak_bytes"]}
    limit = next(iter(results.values()))["hbm_limit_bytes"]
    nearest = sorted(peaks, key=lambda b: abs(peaks[b] - limit))[:2]
    guess = (low + high) // 2 if high <= _LARGEST_TRIED else max(2 * low, 1)
    if len(nearest) == 2:
        a, b = nearest
        slope = (peaks[b] - peaks[a]) / (b - a)
        if slope > 0:
            guess = int(a + (limit - peaks[a]) / slope)
            # A guess of `low` again says that little more fits: try the next one.
            guess = guess + 1 if guess <= low else guess
    return min(max(guess, low + 1), high - 1)


def _dump(directory: str, target: Target, batch: int, step: LoweredStep, optimized: str) -> None:
    """Keep both functions of the step (serialized) and the optimised program (text)."""
    storage.make_directory(directory)
    owned = Owned.create(directory, DUMP)
    prefix = f"step-batch{batch}.{target.name.replace(':', '-')}"
    for name, traced in (("gradients", step.gradients), ("update", step.update)):
        owned.write(f"{prefix}.{name}.hlo.pb", traced.hlo)
    if optimized:
        owned.write(f"{prefix}.optimized.hlo", optimized.encode())
