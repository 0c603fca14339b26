"""Time and memory of a config's train step on a chip or slice, from the compiled program."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bigbird_ja import storage
from bigbird_ja.accelerators import measured
from bigbird_ja.accelerators.chips import predict_link_seconds
from bigbird_ja.data import packing
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.errors import BadInput
from bigbird_ja.model import pattern
from bigbird_ja.model.flops import count_model_flops
from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.model.kernels.layer_shape import LayerShape, tile_rows
from bigbird_ja.preflight import costs, figures, hlo, roofline
from bigbird_ja.preflight.compile import CompilerFailed, Program, Shortage, Target, compile_for
from bigbird_ja.preflight.machine_code import Code
from bigbird_ja.preflight.results import StepResult
from bigbird_ja.process.console import show_waiting
from bigbird_ja.settings.checks import check_divides
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train.engines.lowering.lowered import LoweredStep

if TYPE_CHECKING:
    import tensorflow as tf

# Maximum batch per core in the search for the largest batch that fits.
_LARGEST_TRIED = 1024
# Kind of a `dump_hlo` folder in the folder's ownership manifest.
DUMP = "compiled programs"
# Histogram of the lengths of 9,954 Japanese documents, at 1.5 characters per token
# (docs/lab/kernel.md). Element i is the number of documents with 2**i to 2**(i + 1) - 1 tokens.
STATED_LENGTHS = (0, 0, 0, 0, 248, 1413, 2065, 1587, 1696, 1347, 791, 495, 203, 79, 20, 4, 5, 1)
# Maximum number of documents, and approximate maximum number of tokens, in `average_trips`.
_MAX, _TOKENS = 4000, 1 << 22


def divide_batch(config: Config, target: Target) -> int:
    """Return the number of sequences per device and micro-batch.

    The number of devices is the slice's, or `tpu.num_cores` if the target is one device.

    Raises:
        BadInput: The global batch is not divisible by the number of devices times the number of
            micro-batches.
    """
    count = target.devices if target.is_slice else config.tpu.num_cores
    accumulated = config.training.gradient_accumulation_steps
    try:
        return check_divides(config.training.global_batch_size, count, accumulated)
    except BadInput as error:
        where = f"`topology` {target.name}: " if target.is_slice else ""
        raise BadInput(f"{where}{error}, or give `batch_per_core`") from error


def trace(config: Config, data: Data, batch: int, devices: int = 1) -> LoweredStep:
    """Trace the step that `pretrain --engine pjrt` runs on `devices` devices.

    If `devices` is 1, trace the part of the step that one of `tpu.num_cores` devices runs, without
    collectives. (libtpu can compile the complete program only for a slice of `tpu.num_cores`
    devices.)

    Raises:
        BadInput: The step does not support these shapes.
    """
    from bigbird_ja.train.engines.lowering.program import Program

    sequences = batch * config.training.gradient_accumulation_steps
    program = Program(config, data, sequences, devices)
    if devices == 1 and config.tpu.num_cores > 1:
        share = functools.partial(orthogonalize_share, devices=config.tpu.num_cores)
        program = replace(program, orthogonalize=share)
    return program.lower()


def orthogonalize_share(stack: tf.Tensor, devices: int) -> tf.Tensor:
    """Orthogonalize the matrices in a stack that one device processes, for the optimizer Muon.

    Args:
        stack: [matrices, rows, columns], the stack.
        devices: Number of devices over which the stack is divided.

    Returns:
        [matrices, rows, columns], in which the other devices' matrices are unchanged.
    """
    import tensorflow as tf

    from bigbird_ja.train.optimizer import orthogonalize

    count = -(-stack.shape[0] // devices)
    return tf.concat([orthogonalize(stack[:count]), stack[count:]], axis=0)


def examine(
    config: Config,
    data: Data,
    target: Target,
    batch: int,
    dump_dir: str | None = None,
    with_code: bool = True,
    kept_in: str = "",
) -> StepResult:
    """Compile the train step for a target, and return the step's time, memory and other figures.

    If the compiler fails on the attention kernels, and the config does not require them, the step
    is compiled again without kernels.

    Args:
        config: Config of the run.
        data: Data of the run.
        target: One device or a slice.
        batch: Sequences per device and micro-batch.
        dump_dir: Folder for the HLO before and after compilation, or None.
        with_code: Whether to count machine code too, if the compiler can list it.
        kept_in: Local folder of JAX's compilation cache; "" for none.

    Raises:
        BadInput: The step does not support these shapes, or the compiler is not installed.
        CompilerFailed: The compiler crashed or took too long.
    """
    resolved = kernels.resolve_attention(config, data, "tpu", target.chip.name)

    def attempt(config: Config) -> tuple[LoweredStep, float, Program | Shortage]:
        began = time.monotonic()
        with show_waiting(f"tracing {config.model.num_layers} layers, {batch} sequences per core"):
            step = trace(config, data, batch, target.devices)
        seconds, trips = time.monotonic() - began, measure_documents(config, data)[0]
        takes = "this takes minutes, and about 7.5 GB of memory for a base model"
        with show_waiting(f"compiling {batch} sequences per core for {target.name} ({takes})"):
            return step, seconds, compile_for(step, target, with_code, trips, kept_in)

    try:
        step, seconds, compiled = attempt(resolved)
    except CompilerFailed as error:
        resolved = kernels.fall_back_to_xla(config, resolved, error)
        step, seconds, compiled = attempt(resolved)
    if dump_dir:
        _dump(dump_dir, target, batch, step, compiled)
    result = _compute_figures(resolved, data, target, batch, compiled)
    return replace(result, trace_seconds=round(seconds, 1))


def _compute_figures(
    config: Config, data: Data, target: Target, batch: int, compiled: Program | Shortage
) -> StepResult:
    accumulated = config.training.gradient_accumulation_steps
    _, stated = measure_documents(config, data)
    flops = count_model_flops(config, data, batch, stated["key_tiles_share"] or 1.0)
    result = StepResult(
        chip=target.chip.name,
        topology=target.name if target.is_slice else None,
        devices=target.devices,
        fits=isinstance(compiled, Program),
        seq_length=data.seq_length,
        batch_per_core=batch,
        gradient_accumulation_steps=accumulated,
        predictions_per_seq=count_train_predictions(config, data),
        attention_implementation=config.model.attention_implementation,
        model_flops=flops * accumulated,
        hbm_limit_bytes=target.chip.hbm_bytes,
        **stated,
    )
    if isinstance(compiled, Shortage):
        return replace(
            result, hbm_peak_bytes=compiled.used or None, largest_buffers=compiled.largest
        )
    sizes: dict[str, Any] = compiled.sizes
    result = replace(
        result,
        # Count a buffer that an argument and an output share (alias) once. `sizes` contains it
        # three times.
        hbm_peak_bytes=sum(sizes.values()) - 2 * sizes["alias_bytes"],
        **sizes,
        compiler=compiled.compiler,
        lowering_seconds=compiled.lowering_seconds,
        compile_seconds=compiled.compile_seconds,
    )
    module = hlo.parse(compiled.hlo)
    priced = costs.price_module(module)
    for cost in priced:
        if not cost.trips_known:
            reason = f"{cost.instruction.name} is in a loop of unknown trip count"
            return replace(result, code_not_counted=reason)
    looped_flops, looped_bytes = costs.count_looped_work(priced)
    result = replace(
        result,
        estimated_cycles=round(sum(cost.estimated for cost in priced)),
        priced_cycles=round(sum(cost.cycles for cost in priced)),
        unestimated_ops=sum(cost.trips for cost in priced if cost.priced),
        by_kind=figures.sum_by_kind(priced),
        flops=compiled.flops + looped_flops,
        hbm_traffic_bytes=compiled.bytes_accessed + looped_bytes,
        **(_sum_collectives(target, priced) if target.is_slice else {}),
    )
    return _add_time(result, module, priced, compiled.code, target)


def _add_time(
    result: StepResult,
    module: hlo.Module,
    priced: list[costs.Cost],
    listed: Mapping[str, Code] | None,
    target: Target,
) -> StepResult:
    """Return `result` with the step's time, its rates, and the figures by machine code.

    Args:
        result: Figures of the step without a time.
        module: Optimized program.
        priced: Costs of the program's ops.
        listed: Counts of the ops' machine code, or None if the compiler does not list it.
        target: Device or slice.
    """
    chip = target.chip
    code = roofline.combine_costs(module, priced, listed or {}, chip)
    result = replace(result, top_ops=figures.list_top_ops(code if listed else priced))
    if reason := roofline.find_uncounted(code):
        return replace(result, code_not_counted=reason)
    if listed:
        time = roofline.sum_step_time(module, code, chip)
        result = replace(result, **figures.compute_code_figures(code, time))
    inputs = roofline.sum_inputs(code)
    by_code = inputs["code"] + (result.code_waiting_cycles or 0)
    is_counted = (result.code_coverage or 0.0) >= measured.COUNTED
    seconds, basis = measured.predict_step_seconds(
        inputs["kernels"] / chip.clock_hz,
        by_code / chip.clock_hz if is_counted else None,
        inputs["estimate"] / chip.clock_hz,
        (result.collective_link_ms or 0) / 1e3,
    )
    tokens = result.batch_per_core * result.gradient_accumulation_steps * result.seq_length
    rate = tokens / seconds
    low, high = measured.INTERVAL
    return replace(
        result,
        basis=basis,
        step_ms=seconds * 1e3,
        step_ms_range=(low * seconds * 1e3, high * seconds * 1e3),
        mfu=result.model_flops / (seconds * chip.peak_flops),
        tokens_per_second_per_core=rate,
        tokens_per_second=rate * target.devices if target.is_slice else None,
    )


def _sum_collectives(target: Target, priced: list[costs.Cost]) -> dict[str, Any]:
    """Return the fields of `StepResult` about the collectives in a slice's step."""
    between = [cost for cost in priced if cost.collective]
    carried = sum(
        costs.count_link_bytes(str(cost.collective), cost.moved_bytes, target.devices)
        for cost in between
    )
    count = sum(cost.trips for cost in between)
    return {
        "collectives": count,
        "collective_bytes": round(sum(cost.moved_bytes for cost in between)),
        "collective_cycles": round(sum(cost.cycles for cost in between)),
        "collective_link_ms": 1e3 * predict_link_seconds(target.chip, target.name, carried, count),
    }


def find_largest_batch(measure: Callable[[int], StepResult], first: StepResult) -> int:
    """Return the largest batch per core that fits, or 0 if not even one sequence fits.

    Each try compiles the whole step. To reduce the number of tries, the next batch is extrapolated
    from the memory peaks, which are nearly linear in the batch.

    Args:
        measure: Function that returns the result for a batch. It is called at most once per batch.
        first: Result for the first batch that was tried.
    """
    results = {first.batch_per_core: first}
    while True:
        fitting = [batch for batch, result in results.items() if result.fits]
        failing = [batch for batch, result in results.items() if not result.fits]
        low, high = max(fitting, default=0), min(failing, default=_LARGEST_TRIED + 1)
        if high - low <= 1:
            return low
        guess = _guess(results, low, high)
        results[guess] = measure(guess)


def _guess(results: dict[int, StepResult], low: int, high: int) -> int:
    """Choose the next batch to try, strictly between `low` and `high`."""
    peaks = {batch: one.hbm_peak_bytes for batch, one in results.items() if one.hbm_peak_bytes}
    limit = next(iter(results.values())).hbm_limit_bytes
    nearest = sorted(peaks, key=lambda b: abs(peaks[b] - limit))[:2]
    guess = (low + high) // 2 if high <= _LARGEST_TRIED else max(2 * low, 1)
    if len(nearest) == 2:
        a, b = nearest
        slope = (peaks[b] - peaks[a]) / (b - a)
        if slope > 0:
            guess = int(a + (limit - peaks[a]) / slope)
            # A batch of `low` is known to fit, so try a larger one.
            guess = guess + 1 if guess <= low else guess
    return min(max(guess, low + 1), high - 1)


def _dump(
    directory: str, target: Target, batch: int, step: LoweredStep, compiled: Program | Shortage
) -> None:
    """Write the HLO of gradients and update (serialized), and of the compiled program (text)."""
    storage.make_directory(directory)
    owned = Owned.create(directory, DUMP)
    prefix = f"step-batch{batch}.{target.name.replace(':', '-')}"
    for name, traced in (("gradients", step.gradients), ("update", step.update)):
        owned.write(f"{prefix}.{name}.hlo.pb", traced.hlo)
    if isinstance(compiled, Program):
        owned.write(f"{prefix}.optimized.hlo", compiled.hlo.encode())


# --- documents ---
# An attention kernel skips the key tiles that contain no document of the query tile. So the trip
# counts of the kernel's loops depend on the data. The estimate uses the mean trip counts over
# simulated documents, which are packed as `make-data` packs documents.


def measure_documents(
    config: Config, data: Data
) -> tuple[tuple[tuple[float, ...], ...], dict[str, Any]]:
    """Compute mean trip counts of the attention kernels' loops, and two fields of `StepResult`.

    A kernel skips key tiles of other documents, so the documents determine its trip counts.

    Returns:
        The mean trip counts of these loops in the forward kernel and in the backward kernel. The
        fields `key_tiles_share` and `document_lengths` by name. If no kernel skips tiles, there are
        no trip counts, and the fields are None.
    """
    shape = find_skipping_layers(config, data)
    if shape is None:
        return (), dict.fromkeys(("key_tiles_share", "document_lengths"))
    lengths, source = read_document_lengths(data)
    both = [average_trips(each, lengths) for each in (shape, replace(shape, is_backward=True))]
    stated = {"key_tiles_share": both[0][1], "document_lengths": source}
    return tuple(means for means, _ in both), stated


def read_document_lengths(data: Data) -> tuple[tuple[int, ...], str]:
    """Return a histogram of document lengths by powers of two, and a text about its source.

    If the data set states no lengths, the histogram `STATED_LENGTHS` is returned.
    """
    own = data.statistics.document_tokens if isinstance(data, Manifest) else None
    return (tuple(own), "of the data set") if own and sum(own) else (STATED_LENGTHS, "stated")


def find_skipping_layers(config: Config, data: Data) -> LayerShape | None:
    """Return the shape of the layers whose kernels skip key tiles of other documents, or None."""
    model = config.model
    if model.attention_implementation != "kernel" or model.attend_across_documents:
        return None
    if model.architecture != "modernbert" and not pattern.is_full(config, data.seq_length):
        return None
    rows, heads = tile_rows(data.seq_length, None), model.num_attention_heads
    size, tiles = model.hidden_size // heads, data.seq_length // rows
    shape = LayerShape(1, tiles, heads, size, rows, None, True, config.training.dtype)
    return shape if shape.runs else None


@functools.lru_cache(maxsize=4)
def average_trips(shape: LayerShape, histogram: tuple[int, ...]) -> tuple[tuple[float, ...], float]:
    """Return the mean trip counts of a kernel's loops, and the fraction of key tiles it computes.

    Documents are simulated with lengths that are evenly spaced quantiles of `histogram`. So the
    result is deterministic.
    """
    import tensorflow as tf

    from bigbird_ja.model.kernels.kernel_attention import find_bounds

    length = shape.tiles * shape.rows
    powers = np.append(0.0, np.cumsum(histogram) / sum(histogram))
    mean = np.dot(np.diff(powers), 1.5 * 2.0 ** np.arange(len(histogram)))
    count = int(min(_MAX, _TOKENS // mean + 1))
    # Assume that lengths between two powers of two are uniform on a logarithmic scale.
    drawn = np.interp((np.arange(count) + 0.5) / count, powers, np.arange(len(powers)))
    sequences = packing.pack((2**drawn).astype(int).tolist(), length)
    documents = np.zeros((len(sequences), length), np.int32)
    for row, fragments in zip(documents, sequences, strict=True):
        end = 1  # The position after [CLS].
        for number, fragment in enumerate(fragments):
            row[end - (number == 0) : end + fragment.cost] = number + 1
            end += fragment.cost
    tiled = tf.constant(documents.reshape(-1, shape.tiles, shape.rows))
    first, left = np.moveaxis(find_bounds(tiled, tiled > 0).numpy(), -1, 0)
    means = tuple(float(trips.mean()) for _, _, trips in shape.loops(first, left))
    return means, float(left.mean()) / shape.tiles
