"""Shows what this machine has and lacks, and what to do about it.

  bigbird-ja doctor
  bigbird-ja doctor --project MY-PROJECT --json

Looks for packages, engines and the devices that they train on, memory and disk, and Google
credentials. Asks both services which TPUs they offer the project, in which zones, by which quota.
Exits with 0 if this machine can train, else with 2; what only `launch` needs does not count. Writes
nothing without --measure. Takes ten seconds, most of them to import TensorFlow and jax.
"""

import importlib.metadata
import importlib.util
import itertools
import json
import platform
import re
import shutil
import statistics
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bigbird_ja import __version__, storage
from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.process.children import bigbird_ja
from bigbird_ja.process.console import human_bytes, table
from bigbird_ja.process.errors import INSTALL, BadInput, CommandError, require
from bigbird_ja.run import log as run_log
from bigbird_ja.settings import requested_data
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import outputs
from bigbird_ja.storage.ownership import Owned

EXAMPLE = "bigbird-ja doctor"
_PARAGRAPH = textwrap.TextWrapper(
    79, subsequent_indent=" " * 22, break_long_words=False, break_on_hyphens=False
)
_DISK_BYTES = 10e9  # six checkpoints of a base model, 1.3 GB each, and what goes with them
# Of --measure: a folder's kind, and its runs.
_KIND = "measurement"
_STEPS, _EVERY, _PROFILED = 60, 5, "41-45"
_PIECES = 2000  # that the generated text has; the others are never in it
_DOCUMENTS = 400


def define_flags(flags: Flags) -> None:
    """Declares the command's flags."""
    flags.switch(
        "measure",
        "Times steps on generated data instead, beside `preflight`'s prediction (ten minutes on a"
        " TPU): WORK_DIR/measured.json and measured.html.",
    )
    configs = "Preset or YAML file to measure."
    default = ["base-4096", "modernbert-8192"]
    flags.text("measure_config", configs, many=True, default=default, needs="measure")
    flags.path("work_dir", "Local folder of --measure.", default="out/measure", needs="measure")
    flags.text("project", "Id of the Google Cloud project.", none="that of the credentials")


@dataclass(frozen=True)
class Check:
    """Holds one finding."""

    name: str
    is_well: bool
    observed: str
    advice: str = ""


def run(args: Args) -> dict[str, Any]:
    """Looks at this machine, prints each finding, and judges.

    Raises:
        BadInput: this machine cannot train.
    """
    if args.measure:
        return measure(args.work_dir, args.measure_config)
    checks = []
    offers: list[dict[str, Any]] = []
    for check in itertools.chain(_packages(), _room(), _engines(), _cloud(args.project, offers)):
        checks.append(check)
        advice = f": {check.advice}" if check.advice and not check.is_well else ""
        text = f"{'ok' if check.is_well else '--'}  {check.name:<17} {check.observed}{advice}"
        print(_PARAGRAPH.fill(text), flush=True)
    able = [c for c in checks if c.name.startswith("engine") and c.is_well]
    results = {"can_train": bool(able), "checks": [asdict(check) for check in checks]}
    results |= {"offers": offers} if offers else {}
    if not able:
        raise BadInput("this machine cannot train: see the lines on engines", results)
    print(f"this machine can train: {able[0].observed}")
    return results


def _packages() -> Iterator[Check]:
    yield Check("bigbird-ja", True, f"{__version__}, Python {platform.python_version()}")
    by_module = importlib.metadata.packages_distributions()
    for module, advice in INSTALL.items():
        if module in ("jaxlib", "tensorflow_estimator"):
            continue  # comes with jax; is the engine's, below
        if importlib.util.find_spec(module) is None:
            yield Check(module, False, "not installed", advice)
        else:
            names = sorted(by_module.get(module, []), key=len)
            version = importlib.metadata.version(names[0]) if names else "of this image"
            yield Check(module, True, version)


def _room() -> Iterator[Check]:
    from bigbird_ja.train.engines.host_memory import available_bytes

    memory, free = available_bytes(), shutil.disk_usage(".").free
    yield Check("memory", True, "not known" if memory is None else f"{human_bytes(memory)} free")
    advice = "checkpoints of a base model take 8 GB: write to gs://, or to another disk"
    yield Check("disk", free >= _DISK_BYTES, f"{human_bytes(free)} free in this folder", advice)


def _engines() -> Iterator[Check]:
    """Checks each engine and finds the devices that it would train on."""
    from bigbird_ja.train.engines import devices
    from bigbird_ja.train.engines.choose import has_estimator

    is_there = False
    try:
        require("tensorflow")  # reads the records for both
        is_there = has_estimator()
        trained_on = devices.find(devices.is_there(devices.TPU_FILES))
        yield Check("engine pjrt", True, f"pjrt on {trained_on.description}")
    except BadInput as error:
        yield Check("engine pjrt", False, "cannot be used", str(error))
    observed = "estimator on CPU, TPU v2 or v3" if is_there else "no TensorFlow 2.15"
    yield Check("engine estimator", is_there, observed, INSTALL["tensorflow_estimator"])


def _cloud(project: str | None, rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Check credentials and project, and ask both services what they offer the project.

    Args:
        project: id of the Google Cloud project; None for that of the credentials.
        rows: gets one for each machine and service.
    """
    from bigbird_ja.accelerators import load_prices
    from bigbird_ja.launch import offers, rest
    from bigbird_ja.launch.advice import advise
    from bigbird_ja.launch.record import LaunchedRun

    try:
        project = project or rest.credentials()[1]
        offered, faults = offers.make_rows(project, load_prices()) if project else ([], [])
    except BadInput as error:
        yield Check("credentials", False, str(error))
        return
    yield Check("credentials", True, "found")
    yield Check("project", bool(project), project or "none is set", "give --project")
    rows += offered
    place = LaunchedRun("", "", project=str(project), accelerator_type="a TPU")
    for text in dict.fromkeys(advise(fault, place) for fault in faults):
        yield Check("offers", False, "a list can't be read, the package's table serves", text)
    cells: list[tuple[str, str, str, str]] = []
    for row in offered:
        name, service, zones = row["accelerator_type"], row["service"], row["zones"]
        for why in sorted({*zones.values()}):
            places = ", ".join(zone for zone in zones if zones[zone] == why)
            cells.append((name, service, why or "offered", places))
        cells.append((name, service, "counts against the quota", row["quota"]))
    if cells:
        print(table(cells, ("type", "--service", "", "zones")))


# --- --measure: each part is a command in a process of its own, as one at a time may use a TPU ----


def measure(work_dir: str, names: list[str]) -> dict[str, Any]:
    """Measure, write measured.json and measured.html, and return the former's content.

    Args:
        work_dir: for all that is made; the same again continues it.
        names: presets, or YAML files of settings.

    Raises:
        CommandError: a command failed, the folder holds something else, or two files of settings
            have one name.
    """
    folders = [storage.base_name(name).removesuffix(".yaml") for name in names]
    if len(set(folders)) < len(folders):
        raise BadInput(f"--measure_config {', '.join(names)}: name each file differently")
    outputs.check_folder(work_dir, "--work_dir", _KIND, "name another folder")
    storage.make_directory(work_dir)
    owned = Owned.create(work_dir, _KIND)
    machine = bigbird_ja(["doctor"])
    observed = {check["name"]: check["observed"] for check in machine["checks"]}
    for private in ("credentials", "project", "offers"):
        observed.pop(private, None)
    from bigbird_ja.train.engines import devices  # NumPy

    match = re.search(r"(\d+) x (.+)", observed["engine pjrt"])
    count, kind = (int(match[1]), match[2]) if match else (1, "")
    chip = devices.CHIP_OF_KIND.get(kind)
    corpus = storage.join(work_dir, "corpus.jsonl")
    bigbird_ja(["sample", "--output", corpus, "--documents", str(_DOCUMENTS)])
    runs = {}
    for name, folder in zip(names, folders, strict=True):
        runs[name] = _one(name, storage.join(work_dir, folder), corpus, count, chip, "TPU" in kind)
    result = {"bigbird_ja": __version__, "machine": observed, "chip": chip, "runs": runs}
    owned.write(run_log.MEASURED, json.dumps(result, indent=1).encode())
    page = storage.join(work_dir, "measured.html")
    shown = [word for run in runs.values() for word in ("--model_dir", run["model_dir"])]
    bigbird_ja(["report", *shown, "--output", page])
    print(f"measured: {storage.join(work_dir, run_log.MEASURED)}, {page}")
    return result


def _one(
    name: str, folder: str, corpus: str, count: int, chip: str | None, on_tpu: bool
) -> dict[str, Any]:
    """Make data, train and predict for one config, with its sequences per device."""
    config, _ = resolve_config(name)
    batch = max(config.training.global_batch_size // config.tpu.num_cores, 1) * count
    data, model = storage.join(folder, "data"), storage.join(folder, "run")
    here = ["--config", name]
    storage.make_directory(folder)
    prefix = storage.join(folder, "pieces")
    pieces = ["--vocab_size", str(_PIECES), "--output_prefix", prefix]
    bigbird_ja(["tokenize", *here, "--input", corpus, *pieces])
    tokenizer = storage.join(folder, "tokenizer.model")
    storage.write_bytes(tokenizer, _filled(storage.read_bytes(f"{prefix}.model"), config))
    text = ["--input", corpus, "--tokenizer", tokenizer]
    bigbird_ja(["make-data", *here, *text, "--output_dir", data])
    train = ["--batch_size", str(batch), "--num_train_steps", str(_STEPS)]
    train += ["--profile_steps", _PROFILED, "--set", f"training.log_every_steps={_EVERY}"]
    train += ["--set", "training.warmup_steps=0", *(["--use_tpu"] if on_tpu else [])]
    bigbird_ja(["pretrain", *here, *train, "--data_dir", data, "--model_dir", model])
    result = {"model_dir": model, "global_batch_size": batch, **_measured(model)}
    tokens = batch * requested_data(config).seq_length
    result["tokens_per_second"] = tokens / result["step_ms"] * 1e3
    if chip:
        cores = ["--set", f"tpu.num_cores={count}", "--batch_per_core", str(batch // count)]
        result["predicted"] = _predicted([*here, *cores, "--chip", chip, "--profile", model])
    Owned.create(model, "run").write(run_log.MEASURED, json.dumps(result, indent=1).encode())
    return result


def _filled(model: bytes, config: Config) -> bytes:
    """Fill a vocabulary up to the config's size, which costs time, with pieces of no text."""
    from bigbird_ja.text import model_proto

    pieces = model_proto.pieces(model)
    last = min(piece.score for piece in pieces) - 1
    missing = range(len(pieces), requested_data(config).vocab_size)
    new = [model_proto.Piece(f"<unused{n}>", last, model_proto.NORMAL) for n in missing]
    return model_proto.with_pieces(model, [*pieces, *new])


def _measured(model_dir: str) -> dict[str, Any]:
    """Return what a run has logged of its time and memory."""
    from bigbird_ja.preflight import figures

    lines: list[Any] = [*run_log.read_metrics(model_dir)]
    steps = [
        (after["train_seconds"] - before["train_seconds"]) / (after["step"] - before["step"])
        for before, after in itertools.pairwise(lines)
    ]
    events: list[Any] = [*run_log.read_events(model_dir)]
    seconds = figures.op_seconds(model_dir)
    return {
        "step_ms": statistics.median(steps) * 1e3,
        "memory_bytes": next(e["memory_bytes"] for e in events if e["event"] == "profiled"),
        "input_wait_ms": 1e3 * seconds[figures.INPUT] if figures.INPUT in seconds else None,
        "save_seconds": next(e["seconds"] for e in events if e["event"] == "saved"),
        "profile_folder": next(e["folder"] for e in events if e["event"] == "profiled"),
    }


def _predicted(arguments: list[str]) -> dict[str, Any]:
    """Return what `preflight` says, or why it does not."""
    try:
        (result,) = bigbird_ja(["preflight", *arguments])["chips"]
    except CommandError as error:
        return {"error": str(error)}
    by_code = result["code_cycles"]
    priced = result["priced_cycles"]
    share = by_code / priced if by_code and priced else 1.0
    keys = ("tokens_per_second_per_core", "top_ops", "profile")
    return {
        "step_ms": result["step_ms"] and result["step_ms"] * share,
        "memory_bytes": result["hbm_peak_bytes"],
        **{key: result.get(key) for key in keys},
    }
