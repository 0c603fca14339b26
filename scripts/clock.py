"""Compare the price of public programs with the times of real chips: `make bench-clock`.

    python -m scripts.clock [--only NAME]   # compiles what docs/lab/clock.json lacks
    python -m scripts.clock --blind [--only NAME]  # predicts what docs/lab/clock_blind.json lacks

It writes the table of docs/lab/clock.md and its picture.

The programs, with source and date of each time, are in scripts/clock.yaml. Half calibrate the
model's constants (`roofline.STEP_SECONDS`, `measured.REACHED`, `DISPATCH_MS`), half judge it.
A whole step is compiled for one chip with one layer and extrapolated to its depth, and to its batch
and vocabulary if another step has the same layer; weights that a slice divides are gathered layer
by layer while it computes (`_gathers`), and Adam updates the chip's share.
"""

import argparse
import atexit
import datetime
import json
import os
import shutil
import statistics
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from bigbird_ja.accelerators.chips import CHIPS, MEGACORE, Chip, link_seconds
from bigbird_ja.accelerators.measured import REACHED, REACHED_RANGE
from bigbird_ja.preflight import compile as compiler
from bigbird_ja.preflight import costs, hlo, machine_code, roofline
from bigbird_ja.process.console import log
from scripts import blind_programs, clock_programs
from scripts.clock_programs import Spec

PROGRAMS = Path(__file__).with_name("clock.yaml")
CACHE, PAGE = Path("docs/lab/clock.json"), Path("docs/lab/clock.md")
BLIND = Path("docs/lab/clock_blind.json")
PICTURE = Path("docs/images/clock.png")
DISPATCH_MS = 0.115  # calibrated: a call from Python, waited for
# Steps that agree in these are compiled once.
SHAPE = ("chip", "length", "block", "keeps", "width", "heads", "kv_heads", "mlp", "size")
ADAM_BYTES = 28  # that a parameter's update reads and writes in HBM
HALVES = {"calibrate": "tab:gray", "judge": "tab:blue"}
MARKS = {"kernels": "o", "XLA's matmuls": "s", "whole steps": "^"}
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"


def load() -> list[Spec]:
    """Read the programs, each with the defaults of its group."""
    groups = yaml.safe_load(PROGRAMS.read_text(encoding="utf-8"))
    return [group["all"] | one for group in groups.values() for one in group["programs"]]


# --- prices --------------------------------------------------------------------------------------


@cache
def _listings() -> Path:
    """Make the folder for libtpu's listings, which it reads of once, when it is loaded."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    os.environ |= compiler.ENVIRONMENT
    os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(folder)}"
    return Path(folder)


def _compiled(spec: Spec) -> dict[str, float]:
    """Compile one program and price it."""
    import jax
    from jax.sharding import SingleDeviceSharding

    chip = CHIPS[spec["chip"]]
    _listings()
    place = SingleDeviceSharding(compiler.devices_of(chip.topology, {})[0])
    if spec["kind"] == "step":
        program, shapes = clock_programs.decoder(spec, 1)
    elif spec["kind"] == "matmul":
        program, shapes = clock_programs.matmul(spec)
    else:
        program, shapes = clock_programs.attention(spec)
    arrays = [jax.ShapeDtypeStruct(*each, sharding=place) for each in shapes]
    return _price(spec, *_built(jax.jit(program).lower(*arrays)))


def _built(lowered: Any, options: Any = None) -> tuple[hlo.Module, dict[str, machine_code.Code]]:
    """Compile, and return the optimized program and its machine code."""
    folder = _listings()
    for file in folder.iterdir():  # of the program before
        file.unlink()
    module = hlo.parse(compiler.optimized(lowered.compile(compiler_options=options), folder))
    return module, machine_code.collect(str(folder))


def _price(spec: Spec, module: hlo.Module, code: dict[str, machine_code.Code]) -> dict[str, float]:
    """Price a program: milliseconds on the chip, and its counts."""
    chip = CHIPS[spec["chip"]]
    priced = roofline.code_costs(module, costs.costs(module), code, chip)
    if problem := roofline.not_counted(priced):
        raise ValueError(problem)
    # A mask's blocks that stay empty are left out by data that no compiler knows.
    share, saved = _blocks(spec), 0.0
    for one in priced:
        if one.instruction.attribute("custom_call_target") == roofline.KERNEL:
            saved += (1 - share) * one.cycles
    time = roofline.step_time(module, priced, chip)
    every = sum(one.cycles for one in priced) or 1.0
    counted = sum(one.cycles for one in priced if one.bundle_cycles is not None)
    cycles = max(time.cycles + time.waiting - saved, time.hbm)
    steps = sum(listed.steps for listed in code.values())
    result = {"coverage": counted / every, "grid_steps": steps}
    if spec["kind"] == "step":
        inside = [one for one in priced if "layer/" in one.instruction.op_name]
        layer = sum(one.cycles for one in inside) + time.waiting - saved
        result |= {"layer_ms": layer / chip.clock_hz * 1e3}
        result |= {key: spec[key] for key in ("batch", "vocabulary")}
    return result | {"ms": cycles / chip.clock_hz * 1e3}


def _blocks(spec: Spec) -> float:
    """Return the share of a splash kernel's blocks that its mask does not leave out."""
    if "block" not in spec:
        return 1.0
    count = max(spec["length"] // spec["block"], 1)
    reach = -(-int(spec.get("window") or spec["length"]) // spec["block"])
    return sum(min(row, reach) + 1 for row in range(count)) / count / min(count, reach + 1)


def predict(spec: Spec) -> dict[str, float]:
    """Price a whole step on its slice, in milliseconds."""
    few = _known_step(spec)
    chip, wider = CHIPS[spec["chip"]], spec["batch"] / few["batch"]
    layer, gathers = wider * few["layer_ms"], _gathers(spec)
    update = _parameters(spec) / spec["chips"] * ADAM_BYTES / chip.hbm_bytes_per_second * 1e3
    ends = wider * (few["ms"] - few["layer_ms"]) * spec["vocabulary"] / few["vocabulary"]
    ms = (spec["layers"] * max(layer, gathers) + ends + update) / REACHED
    return few | {"gathers_ms": gathers, "update_ms": update, "predicted_ms": ms}


def _known_step(spec: Spec) -> dict[str, float]:
    """Price a step of few layers; one of the same `SHAPE` has that from the cache."""
    key = json.dumps({name: spec[name] for name in SHAPE})
    if key not in _known():
        _keep({key: _compiled(spec)})
    return dict(_known()[key])


def _known() -> dict[str, Any]:
    return dict(json.loads(CACHE.read_text())) if CACHE.exists() else {}


def _keep(results: dict[str, Any]) -> None:
    CACHE.write_text(json.dumps(_known() | results, indent=1) + "\n")


def _layer_parameters(spec: Spec) -> int:
    attention = 2 * spec["width"] * spec["size"] * (spec["heads"] + spec["kv_heads"])
    return int(attention + 3 * spec["width"] * spec["mlp"])


def _parameters(spec: Spec) -> int:
    ends = 2 * spec["vocabulary"] * spec["width"]
    return int(spec["layers"] * _layer_parameters(spec) + ends)


def _gathers(spec: Spec) -> float:
    """Count the milliseconds of a layer's links: weights gathered twice, gradients spread once."""
    chips = spec["chips"]
    size = 3 * 2 * _layer_parameters(spec) * (chips - 1) / chips
    side = 1 << (chips.bit_length() - 1) // 2
    slice_ = f"{spec['chip']}:{side}x{chips // side}"
    return link_seconds(CHIPS[spec["chip"]], slice_, size, 3) * 1e3


def measured_ms(spec: Spec) -> float | None:
    """Return the published time, or the time that follows from a published rate."""
    if "tflops" not in spec:
        return spec.get("measured_ms")
    tokens = spec["batch"] * spec["length"]
    attention = 12 * spec["layers"] * spec["length"] * spec["heads"] * spec["size"]
    flops = tokens * (6 * _parameters(spec) + attention)
    return float(flops / spec["tflops"] / 1e9)


def fill(programs: list[Spec]) -> None:
    """Price the programs that the cache lacks; write each result at once."""
    for spec in programs:
        name, is_step = spec["name"], spec["kind"] == "step"
        if name not in _known():
            try:
                result: dict[str, Any] = predict(spec) if is_step else _compiled(spec)
                result.setdefault("predicted_ms", result.get("ms", 0.0) + DISPATCH_MS)
            except (ValueError, RuntimeError) as error:
                result = {"error": str(error).splitlines()[0][:200]}
            log(f"{name}: {result}")
            _keep({name: result})


# --- predictions before the times are seen ---
# libtpu lists v4's code, too. A chip of v5p has as many matrix units of the same shape.
V4 = replace(MEGACORE["v4"], name="v5p")


@cache
def _count(written: str, layers: int, slice_: str, chip: Chip) -> dict[str, float]:
    """Compile a program for a slice, or one of its devices: milliseconds by code, price, links."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    _listings()
    step, target = json.loads(written), compiler.of_topology(slice_)
    devices = compiler.devices_of(target.topology, target.options)[: step.get("slice", 1)]
    mesh = Mesh(np.asarray(devices), (blind_programs.AXIS,))
    program, shapes, specs = getattr(blind_programs, step["kind"])(step, layers)
    if "slice" in step and step["kind"] != "muon":
        program = jax.shard_map(
            program, mesh=mesh, in_specs=tuple(specs), out_specs=PartitionSpec(), check_vma=False
        )

    def place(shape: Any, spec: Any) -> Any:
        return jax.ShapeDtypeStruct(*shape, sharding=NamedSharding(mesh, spec))

    arrays = jax.tree.map(place, shapes, specs, is_leaf=blind_programs.is_shape)
    with jax.set_mesh(mesh):
        donated = (0, 1, 2) if step["kind"] in ("gemma", "gpt") else ()
        lowered = jax.jit(program, donate_argnums=donated).lower(*arrays)
        module, code = _built(lowered, step.get("options"))
    priced = costs.costs(module)
    counted = roofline.code_costs(module, priced, code, chip)
    time = roofline.step_time(module, counted, chip)
    kernels = sum(one.cycles for one in counted if _is_kernel(one))
    sums = [one for one in priced if one.collective]
    sent = sum(costs.link_bytes(str(one.collective), one.moved_bytes, len(devices)) for one in sums)
    every = sum(one.cycles for one in counted)
    per_ms = chip.clock_hz / 1e3
    return {
        "code_ms": max(time.cycles + time.waiting, time.hbm) / per_ms,
        "estimate_ms": sum(one.cycles for one in priced if not _is_kernel(one)) / per_ms,
        "kernels_ms": kernels / per_ms,
        "links_ms": link_seconds(target.chip, slice_, sent, sum(o.trips for o in sums)) * 1e3,
        "coverage": sum(o.cycles for o in counted if o.bundle_cycles is not None) / every,
        "uncounted_kernels": float(roofline.not_counted(counted) is not None),
    }


def _is_kernel(cost: costs.Cost) -> bool:
    return cost.instruction.attribute("custom_call_target") == roofline.KERNEL


def blind(only: str) -> None:
    """Predict the programs without a prediction; write each at once."""
    for entry in _asked():
        if only in entry["name"] and entry["prediction_ms"] is None:
            result = _prediction(entry["step"])
            log(f"{entry['name']}: {result['prediction_ms']} ms")
            everything = [
                one | (result if one["name"] == entry["name"] else {}) for one in _asked()
            ]
            BLIND.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def _asked() -> list[dict[str, Any]]:
    return list(json.loads(BLIND.read_text(encoding="utf-8")))


def _prediction(step: Spec) -> dict[str, Any]:
    """Predict one program: extrapolated to its depth unless its layers are in a loop."""
    if "from" in step:
        return _interpolated(step)
    slice_, depth = step["on"], step.get("layers", 1)
    is_v4 = slice_.startswith("v4")
    chip = V4 if is_v4 else CHIPS[slice_.partition(":")[0]]
    given = json.dumps({key: value for key, value in step.items() if key != "muon"})
    first, *more = (_count(given, n, slice_, chip) for n in step.get("compiled", [depth]))
    found = [first]
    if more:
        ratio = (depth - step["compiled"][0]) / (step["compiled"][1] - step["compiled"][0])
        grown = {key: first[key] + ratio * (more[0][key] - first[key]) for key in first}
        found = [grown | {"coverage": more[0]["coverage"]}]
    if "chips" in step:
        found += _divided(step)
    ms = sum(one["links_ms"] + one["code_ms"] for one in found)
    if is_v4:
        ms = sum(found[0][key] for key in ("links_ms", "estimate_ms", "kernels_ms"))
    is_step = "layers" in step
    call = 0 if is_step or step.get("on_device") else DISPATCH_MS
    reached = REACHED if is_step and not is_v4 else 1.0  # `plan` takes all of a rate by estimates
    least, most = (ms * (REACHED if is_v4 else 1) / share for share in reversed(REACHED_RANGE))
    return {
        "prediction_ms": round(ms / reached + call, 4),
        "interval_ms": [round(least + call, 4), round(most + call, 4)],
        "counted": [{key: round(value, 5) for key, value in one.items()} for one in found],
        "libtpu": compiler.versions()["libtpu"],
        "predicted_on": datetime.date.today().isoformat(),
    }


def _interpolated(step: Spec) -> dict[str, Any]:
    """Predict by the entries in `from`: a constant, a part by tokens, one by tokens x length.

    Of one entry, on a slice, the constant is its sum of gradients and Adam's bytes.
    """
    import numpy as np

    def sizes(one: Spec) -> list[float]:
        tokens = one["batch"] * one["length"]
        return [1.0, tokens, tokens * one["length"]][: max(len(known), 2)]

    known = [one for one in _asked() if one["name"] in step["from"]]
    rows = [sizes(one["step"]) for one in known]
    times = [[one["prediction_ms"], *one["interval_ms"]] for one in known]
    if len(known) == 1:
        chip, width = compiler.of_topology(step["on"]).chip, step["width"]
        held = 2 * step["vocabulary"] * width + 12 * step["layers"] * width**2
        fixed = held * ADAM_BYTES / chip.hbm_bytes_per_second * 1e3
        fixed += known[0]["counted"][0]["links_ms"]
        rows.append([1.0, 0.0])
        times.append([fixed / share for share in (REACHED, *reversed(REACHED_RANGE))])
    ms, *ends = (round(value, 4) for value in sizes(step) @ np.linalg.solve(rows, times))
    dated = {key: known[-1][key] for key in ("libtpu", "predicted_on")}
    return {"prediction_ms": ms, "interval_ms": ends, "counted": "interpolated"} | dated


def _divided(step: Spec) -> list[dict[str, float]]:
    """Price a slice's work after the gradients: links, and the optimizer on the chip's share.

    Gathering layers' weights and scattering their gradients overlaps with the layers (`predict`);
    the vocabulary's are not hidden.
    """
    chips, chip = step["chips"], CHIPS[step["chip"]]
    ends = _parameters(step | {"layers": 0}) * (chips - 1) / chips
    links = link_seconds(chip, step["on"], 3 * 2 * ends, 6) * 1e3
    held = _parameters(step) / chips * ADAM_BYTES
    more = []
    if step.get("muon"):  # takes the layers' share of Adam's work
        held -= step["layers"] * _layer_parameters(step) / chips * ADAM_BYTES
        muon = json.dumps(step | {"kind": "muon", "slice": chips})
        more = [_count(muon, step["layers"], step["on"], chip)]
    return [{"links_ms": links, "code_ms": held / chip.hbm_bytes_per_second * 1e3}, *more]


# --- the page ------------------------------------------------------------------------------------


def kind_of(spec: Spec) -> str:
    """Name the group for which the error is stated: steps, kernels, or XLA's own fusions."""
    if spec["kind"] == "step":
        return "whole steps"
    return "XLA's matmuls" if spec["kind"] == "matmul" and "tiles" not in spec else "kernels"


def report(programs: list[Spec], known: dict[str, Any]) -> None:
    """Write the judging programs and all errors into the page, draw the picture."""
    lines = ["| program | predicted, ms | published, ms | published / predicted |"]
    lines += ["|---|---|---|---|"]
    for spec in (spec for spec in programs if spec["split"] == "judge"):
        found, measured = known.get(spec["name"], {}), measured_ms(spec)
        predicted = found.get("predicted_ms")
        cells = [f"{value:.4g}" if value else "" for value in (predicted, measured)]
        cells[0] = cells[0] or found.get("error", "not compiled yet")
        cells += [f"{measured / predicted:.2f}" if measured and predicted else ""]
        lines.append(f"| [{spec['name']}]({spec['source']}) | {' | '.join(cells)} |")
    lines += ["", "| half | kind | programs | median error | worst |", "|---|---|---|---|---|"]
    pairs = both_times(programs, known)
    for (half, kind), times in pairs.items():
        errors = {name: abs(predicted / ms - 1) for name, (predicted, ms) in times.items()}
        worst = max(errors, key=lambda name: errors[name])
        row = half, kind, len(errors), f"{statistics.median(errors.values()):.0%}"
        lines.append(f"| {' | '.join(map(str, row))} | {errors[worst]:.0%}: {worst} |")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])
    draw(pairs)


Times = dict[str, tuple[float, float]]  # predicted and published milliseconds, by program


def both_times(programs: list[Spec], known: dict[str, Any]) -> dict[tuple[str, str], Times]:
    """Return the times that are known of both sides, by half and kind."""
    pairs: dict[tuple[str, str], Times] = {(half, kind): {} for half in HALVES for kind in MARKS}
    for spec in programs:
        predicted = known.get(spec["name"], {}).get("predicted_ms")
        if predicted and (measured := measured_ms(spec)):
            pairs[spec["split"], kind_of(spec)][spec["name"]] = predicted, measured
    return {group: times for group, times in pairs.items() if times}


def draw(pairs: dict[tuple[str, str], Times]) -> None:
    """Draw predicted against published times, both axes logarithmic."""
    figure = Figure(figsize=(7, 6))
    axes = figure.subplots()
    for (half, kind), times in pairs.items():
        label = f"{kind}, {half.removesuffix('e')}ing"
        x, y = zip(*times.values(), strict=True)
        axes.scatter(x, y, marker=MARKS[kind], color=HALVES[half], label=label, alpha=0.8)
    shown = [value for times in pairs.values() for both in times.values() for value in both]
    ends = (0.6 * min(shown), 1.7 * max(shown))
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(ends, [0.7 * e for e in ends], [1.3 * e for e in ends], alpha=0.12)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("predicted, milliseconds")
    axes.set_ylabel("published, milliseconds")
    axes.set_title("Public programs on real TPUs: line = equal, band = 30 %")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Predict, compare, draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--blind", action="store_true", help="predict, without times")
    args = parser.parse_args()
    if args.blind:
        return blind(args.only)
    programs = load()
    fill([spec for spec in programs if args.only in spec["name"]])
    report(programs, _known())


if __name__ == "__main__":
    main()
