"""What `preflight` prints for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from bigbird_ja.accelerators.chips import CHIPS, MEGACORE, TRAINABLE, Chip
from bigbird_ja.model.flops import model_flops
from bigbird_ja.process.console import human_bytes, human_count, table
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions


def describe(result: Mapping[str, Any]) -> str:
    """One chip's or slice's results as a few lines."""
    chip = chip_of(result)
    where = (
        f"{result['topology']}, {result['devices']} devices" if "devices" in result else chip.name
    )
    head = (
        f"{where}: {result['batch_per_core']} x {result['seq_length']} tokens per {chip.unit}"
        + (f" ({chip.remark})" if chip.remark else "")
    )
    lines = _fitting(result, chip) if result["fits"] else _not_fitting(result, chip)
    if "largest_batch_per_core" in result:
        lines.append(f"largest batch that fits: {result['largest_batch_per_core']} per {chip.unit}")
    if chip.name not in TRAINABLE:
        lines.append(
            "note: TPUEstimator does not run on this chip (tensorflow#90807): --engine=pjrt does"
        )
    if "first_phase" in result:
        lines.append(_of_first_phase(result))
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _of_first_phase(result: Mapping[str, Any]) -> str:
    """What a step of the first phase takes, against one of the second, which has as many tokens."""
    phase = result["first_phase"]
    name = f"first phase, {phase['batch_per_core']} x {phase['seq_length']} tokens:"
    if not phase["fits"]:
        return f"{name} does not fit: {human_bytes(phase['hbm_peak_bytes'])} of HBM"
    against = ""
    if phase.get("code_cycles") and result.get("code_cycles"):  # kernels have no priced cycles
        against = f" ({phase['code_cycles'] / result['code_cycles']:.2f} x by machine code)"
    elif result["fits"]:
        against = f" ({phase['step_ms'] / result['step_ms']:.2f} x)"
    peak = human_bytes(phase["hbm_peak_bytes"])
    return f"{name} {phase['step_ms']:.0f} ms{against}, HBM peak {peak}"


def chip_of(result: Mapping[str, Any]) -> Chip:
    """What one device of a result is."""
    name = result["chip"]
    return MEGACORE.get(name, CHIPS[name]) if "devices" in result else CHIPS[name]


def _fitting(result: Mapping[str, Any], chip: Chip) -> list[str]:
    total, estimated = result["priced_cycles"], result["estimated_cycles"]
    lines = [
        f"fits: HBM peak {human_bytes(result['hbm_peak_bytes'])} of"
        f" {human_bytes(chip.hbm_bytes)} (temporaries {human_bytes(result['temp_bytes'])},"
        f" arguments {human_bytes(result['argument_bytes'])})",
        f"time: {result['step_ms']:.0f} ms = {total / 1e6:.1f} M cycles at"
        f" {chip.clock_hz / 1e6:.0f} MHz (estimated {estimated / 1e6:.1f} M, priced for"
        f" {human_count(result['unestimated_ops'])} ops without an estimate"
        f" {(total - estimated) / 1e6:.1f} M)",
        f"rate: {human_count(result['tokens_per_second_per_core'])} tokens/s per {chip.unit};"
        f" MFU {result['mfu']:.1%} of {chip.peak_flops / 1e12:g} TFLOP/s",
        f"work: {result['model_flops'] / 1e9:,.0f} GFLOP by the model,"
        f" {result['flops'] / 1e9:,.0f} in the program; HBM traffic"
        f" {human_bytes(result['hbm_traffic_bytes'])}",
    ]
    if result["code_cycles"] is not None:
        lines += _by_code(result, chip)
    if "devices" in result:
        lines.append(_between(result))
    if result["loops_of_unknown_length"]:
        lines.append("warning: a loop's length is unknown, its body is counted once")
    by_code = result["code_by_kind"] or {}
    kinds = [
        (kind, f"{value / 1e6:.1f}", f"{value / total:.0%}")
        + ((f"{by_code.get(kind, 0) / 1e6:.1f}",) if by_code else ())
        for kind, value in (dict.fromkeys(by_code, 0) | result["by_kind"]).items()
    ]
    layers = [
        (layer, f"{value / 1e6:.1f}", f"{value / total:.0%}")
        for layer, value in _ordered(result["by_layer"])
    ]
    ops = [
        (op["op"][-70:], op["kind"], op["count"], f"{op['cycles'] / 1e6:.2f}",
         f"{op['cycles'] / total:.1%}")
        + (_code_columns(op) if by_code else ())
        for op in result["top_ops"]
    ]  # fmt: skip
    code, roofs = (("by code",), ("by code", "HBM", "bound by")) if by_code else ((), ())
    for rows, header in (
        (kinds, ("kind", "M cycles", "share", *code)),
        (layers, ("layer", "M cycles", "share")),
        (ops, ("costliest ops", "kind", "times", "M cycles", "share", *roofs)),
    ):
        lines += ["", *table(rows, header).splitlines()]
    return lines


def _by_code(result: Mapping[str, Any], chip: Chip) -> list[str]:
    """The step by machine code, and what of it the compiler did not analyse."""
    total = result["code_cycles"]
    bound = ", ".join(
        f"{name} {cycles / total:.0%}" for name, cycles in result["code_bound_by"].items()
    )
    left = result["code_uncounted"]
    lines = [
        f"by machine code: {total / 1e6:.1f} M cycles, {total / chip.clock_hz * 1e3:.0f} ms"
        f" ({result['code_coverage']:.1%} counted), {result['code_waiting_cycles'] / 1e6:.1f} M of"
        " them waiting for copies",
        f"limits of HBM and matrix units: {result['code_roofline_cycles'] / 1e6:.1f} M; bound by:"
        f" {bound}",
    ]
    if left:
        count, cycles = sum(op["count"] for op in left), sum(op["priced_cycles"] for op in left)
        lines.append(
            f"not counted, so priced: {human_count(count)} ops, {cycles / 1e6:.2f} M cycles, the"
            f" dearest {left[0]['op'][-60:]}"
        )
    return lines


def _code_columns(op: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        f"{op['code_cycles'] / 1e6:.2f}", f"{op['hbm_cycles'] / 1e6:.2f}",
        op["bound_by"] or "not counted",
    )  # fmt: skip


def _between(result: Mapping[str, Any]) -> str:
    return (
        f"slice: {human_count(result['tokens_per_second'])} tokens/s together; between devices"
        f" {human_bytes(result['collective_bytes'])} in {result['collectives']} operations,"
        f" {result['collective_cycles'] / 1e6:.1f} M of the cycles (links on paper:"
        f" {result['collective_link_ms']:.1f} ms)"
    )


def _ordered(layers: Mapping[str, float]) -> list[tuple[str, float]]:
    def place(item: tuple[str, float]) -> int:
        number = item[0].rpartition(" ")[2]
        return int(number) if number.isdigit() else 10**6

    return sorted(layers.items(), key=place)


def _not_fitting(result: Mapping[str, Any], chip: Chip) -> list[str]:
    used = result["hbm_peak_bytes"]
    lines = [
        f"does not fit: needs {human_bytes(used) if used else 'more'} of"
        f" {human_bytes(chip.hbm_bytes)}; try a smaller batch (--batch_per_core,"
        " training.gradient_accumulation_steps) or training.gradient_checkpointing=true"
    ]
    buffers = [(human_bytes(b["bytes"]), b["op"], b["shape"]) for b in result["largest_buffers"]]
    if buffers:
        lines += ["", *table(buffers, ("largest buffers", "op", "shape")).splitlines()]
    return lines


def left_out(
    config: Config,
    parameters: int,
    results: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
) -> str:
    """What the figures do not contain."""
    cores = config.tpu.num_cores
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = ["Not in these figures:"]
    alone = [result for result in results if "devices" not in result]
    if alone:
        chip = chip_of(alone[0])
        seconds = all_reduce_seconds(parameters, cores, chip)
        lines.append(
            f"  - adding up gradients over {cores} cores: about {seconds * 1e3:.0f} ms per step on"
            f" {chip.name}, on paper (4 bytes per parameter, twice round a ring); --topology"
            " compiles it too"
        )
    if len(alone) < len(results):
        lines.append(
            "  - links between devices: what they carry is priced as memory is; their time on paper"
            " is bytes round a ring by the links' rate, where nothing runs beside them"
        )
    if any(result["attention_implementation"] == "kernel" for result in results):
        lines.append(
            "  - what attention's kernels take, in priced cycles and the time and rate that come of"
            " them: only cycles by machine code have it"
        )
    return "\n".join(
        [
            *lines,
            "  - input, saving and logging: they run beside the step, on the host",
            f"  - the compiler's version: this is {packages}; TensorFlow 2.15's TPU runtime carries"
            " an older one",
            "  - hardware: nothing was timed; compare with other estimates made in this way",
        ]
    )


def of_mask_rate(config: Config) -> str:
    """What a mask rate of training's own costs: the head reads as many places as the highest needs.

    Args:
        config: completed, with `training.masked_lm_prob`.
    """
    training, plain = config.training, deepcopy(config)
    plain.training = dataclasses.replace(training, masked_lm_prob=None, final_masked_lm_prob=None)
    more = model_flops(config, 1) / model_flops(plain, 1) - 1
    last = training.final_masked_lm_prob
    falling = "" if last is None else f" -> {last:g}"
    return (
        f"training.masked_lm_prob {training.masked_lm_prob:g}{falling}:"
        f" {train_predictions(config):,} places for predictions per sequence, where the data set"
        f" has {train_predictions(plain):,}: {more:+.1%} of the model's FLOPs, in the figures"
    )


def all_reduce_seconds(parameters: int, cores: int, chip: Chip) -> float:
    """A ring all-reduce of float32 gradients: each link carries 2 (n - 1) / n of their bytes."""
    return 2 * (cores - 1) / cores * 4 * parameters / chip.link_bytes_per_second
