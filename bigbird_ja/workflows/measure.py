"""Measurement of training steps on this machine, next to the prediction of `preflight`.

Each part is a command in a process of its own, as one process at a time may use a TPU.
"""

import itertools
import json
import re
import statistics
from typing import Any

from bigbird_ja import __version__, storage
from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.settings.data_facts import requested_data
from bigbird_ja.settings.resolve import base_layers, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.storage import outputs
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.workflows.run_command import run_command

_KIND = "measurement"
_STEPS, _EVERY, _PROFILED = 60, 5, "41-45"
_VOCAB_SIZE = 2000  # the generated text has no more distinct tokens
_DOCUMENTS = 400


def measure(work_dir: str, names: list[str]) -> dict[str, Any]:
    """Measure, write measured.json and measured.html, and return the former's content.

    Args:
        work_dir: local folder for all files; a second call continues in it.
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
    machine = run_command(["doctor"])
    observed = {check["name"]: check["observed"] for check in machine["checks"]}
    for private in ("credentials", "project", "offers"):
        observed.pop(private, None)
    from bigbird_ja.train.engines import devices  # NumPy

    match = re.search(r"(\d+) x (.+)", observed["engine pjrt"])
    count, kind = (int(match[1]), match[2]) if match else (1, "")
    chip = devices.CHIP_OF_KIND.get(kind)
    corpus = storage.join(work_dir, "corpus.jsonl")
    run_command(["sample", "--output", corpus, "--documents", str(_DOCUMENTS)])
    runs = {}
    for name, folder in zip(names, folders, strict=True):
        runs[name] = _one(name, storage.join(work_dir, folder), corpus, count, chip, "TPU" in kind)
    result = {"bigbird_ja": __version__, "machine": observed, "chip": chip, "runs": runs}
    owned.write(run_log.MEASURED, json.dumps(result, indent=1).encode())
    page = storage.join(work_dir, "measured.html")
    shown = [word for run in runs.values() for word in ("--model_dir", run["model_dir"])]
    run_command(["report", *shown, "--output", page])
    for name, run in runs.items():
        began = f"{run['compile_seconds']} s until the engine began, compilation included"
        print(f"{name}: {run['step_ms']:.1f} ms a step; {began}")
    print(f"measured: {storage.join(work_dir, run_log.MEASURED)}, {page}")
    return result


def _one(
    name: str, folder: str, corpus: str, count: int, chip: str | None, on_tpu: bool
) -> dict[str, Any]:
    """Make data, train and predict for one config, with its batch size per device."""
    config, _ = resolve_config(base_layers(name))
    batch = max(config.training.global_batch_size // config.tpu.num_cores, 1) * count
    data, model = storage.join(folder, "data"), storage.join(folder, "run")
    here = ["--config", name]
    storage.make_directory(folder)
    prefix = storage.join(folder, "trained")
    vocabulary = ["--vocab_size", str(_VOCAB_SIZE), "--output_prefix", prefix]
    run_command(["tokenize", *here, "--input", corpus, *vocabulary])
    tokenizer = storage.join(folder, "tokenizer.model")
    storage.write_bytes(tokenizer, _filled(storage.read_bytes(f"{prefix}.model"), config))
    text = ["--input", corpus, "--tokenizer", tokenizer]
    run_command(["make-data", *here, *text, "--output_dir", data])
    train = ["--batch_size", str(batch), "--num_train_steps", str(_STEPS)]
    train += ["--profile_steps", _PROFILED, "--set", f"training.log_every_steps={_EVERY}"]
    train += ["--set", "training.warmup_steps=0", *(["--use_tpu"] if on_tpu else [])]
    run_command(["pretrain", *here, *train, "--data_dir", data, "--model_dir", model])
    result = {"model_dir": model, "global_batch_size": batch, **_measured(model)}
    tokens = batch * requested_data(config).seq_length
    result["tokens_per_second"] = tokens / result["step_ms"] * 1e3
    if chip:
        cores = ["--set", f"tpu.num_cores={count}", "--batch_per_core", str(batch // count)]
        result["predicted"] = _predicted([*here, *cores, "--chip", chip])
    Owned.create(model, "run").write(run_log.MEASURED, json.dumps(result, indent=1).encode())
    return result


def _filled(model: bytes, config: Config) -> bytes:
    """Fill a vocabulary up to the config's size with unused tokens, which cost time."""
    from bigbird_ja.text import model_proto

    pieces = model_proto.pieces(model)
    last = min(piece.score for piece in pieces) - 1
    missing = range(len(pieces), requested_data(config).vocab_size)
    new = [model_proto.Piece(f"<unused{n}>", last, model_proto.NORMAL) for n in missing]
    return model_proto.with_pieces(model, [*pieces, *new])


def _measured(model_dir: str) -> dict[str, Any]:
    """Return the time and memory that a run has logged."""
    from bigbird_ja.train.profile import input_wait_seconds

    lines: list[Any] = [*run_log.read_metrics(model_dir)]
    steps = [
        (after["train_seconds"] - before["train_seconds"]) / (after["step"] - before["step"])
        for before, after in itertools.pairwise(lines)
    ]
    events: list[Any] = [*run_log.read_events(model_dir)]
    heartbeat: Any = run_log.read_heartbeat(model_dir) or {}
    wait = input_wait_seconds(model_dir)
    return {
        "step_ms": statistics.median(steps) * 1e3,
        "memory_bytes": next(e["memory_bytes"] for e in events if e["event"] == "profiled"),
        "input_wait_ms": None if wait is None else 1e3 * wait,
        "compile_seconds": heartbeat.get("compile_seconds"),
        "save_seconds": next(e["seconds"] for e in events if e["event"] == "saved"),
        "profile_folder": next(e["folder"] for e in events if e["event"] == "profiled"),
    }


def _predicted(arguments: list[str]) -> dict[str, Any]:
    """Return the prediction of `preflight`, or the error."""
    try:
        (result,) = run_command(["preflight", *arguments])["chips"]
    except CommandError as error:
        return {"error": str(error)}
    by_code = result["code_cycles"]
    priced = result["priced_cycles"]
    share = by_code / priced if by_code and priced else 1.0
    keys = ("tokens_per_second_per_core", "top_ops")
    return {
        "step_ms": result["step_ms"] and result["step_ms"] * share,
        "memory_bytes": result["hbm_peak_bytes"],
        **{key: result.get(key) for key in keys},
    }
