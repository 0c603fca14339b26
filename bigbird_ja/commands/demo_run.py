"""The demo: the commands in the order of use, one of them killed midway."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bigbird_ja import storage
from bigbird_ja.process import children, cleanup, console
from bigbird_ja.process.errors import BadInput, of_reason
from bigbird_ja.run import log as run_log
from bigbird_ja.settings.option import is_used
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.schema import LENGTH_SETTINGS
from bigbird_ja.storage import decode, outputs
from bigbird_ja.storage.lease import Lease, held

DOCUMENTS = 400
SAMPLE_SEED = 7
# The kill comes after this share of the steps, once a checkpoint is there to come back to.
KILL_AFTER = 0.5
_PATIENCE_SECONDS = 10.0

# What the commands of the road use of the settings, and what the demo chooses itself.
_TOKENIZER, _DATA = ("tokenize",), ("make_data", *LENGTH_SETTINGS)
_TRAINING = ("model", "data", "training", "checkpoints", "tpu")
_CHOSEN_HERE = ("training.num_train_steps", "checkpoints.save_every_steps")

_MARKER = ".bigbird-ja-demo"
_TOKENIZER_FILES = {f"tokenizer.{kind}" for kind in ("model", "vocab", "json")}
_FOLDERS = {"data", "run", "run-uninterrupted"}
_LOCK = ".bigbird-ja-demo.lock"
_LOCKS = {_LOCK, ".corpus.jsonl.sample.lock", ".tokenizer.tokenize.lock"}  # after a kill
_FILES = {_MARKER, "corpus.jsonl", "demo.json", "report.html"}
_MADE = _FILES | _TOKENIZER_FILES | _FOLDERS | _LOCKS


def run(
    work_dir: str,
    *,
    num_train_steps: int,
    overwrite: bool,
    config: str,
    sets: Sequence[str] = (),
) -> dict[str, Any]:
    """Walks the whole road in `work_dir` and returns what was shown.

    Args:
        work_dir: a local folder; each step's output has its own place in it.
        num_train_steps: optimiser steps of both runs.
        overwrite: removes `work_dir` first, if a demo made it.
        config: preset of the model, or a file.
        sets: further `section.key=value` settings.

    Raises:
        BadInput: `work_dir` holds something that no demo made, or a setting that cannot be.
        RuntimeError: the demo did not show what it promises; the message says what.
    """
    start = time.monotonic()
    _check_settings(config, sets)
    _prepare(work_dir, overwrite)
    with _alone(work_dir, overwrite):
        return _walk(work_dir, num_train_steps, config, sets, start)


def _walk(
    work_dir: str, num_train_steps: int, config: str, sets: Sequence[str], start: float
) -> dict[str, Any]:
    place = _make_data(work_dir, config, sets)
    train = [*_settings(_TRAINING, config, sets), "--data_dir", place["data"]]
    train += [f"--num_train_steps={num_train_steps}"]
    # Often enough that the kill finds checkpoints to come back to, rarely enough to lose steps.
    train += [f"--set=checkpoints.save_every_steps={num_train_steps // 6}"]
    trained = _train_twice(work_dir, train, int(num_train_steps * KILL_AFTER))
    place |= {"model": storage.join(work_dir, "run")}
    result = {"work_dir": work_dir, **trained, **_look_at_it(work_dir, place)}
    result["seconds"] = round(time.monotonic() - start, 1)
    _check(result)
    storage.write_bytes(storage.join(work_dir, "demo.json"), json.dumps(result).encode())
    print(_closing_words(result, place))
    return result


def _check_settings(config: str, sets: Sequence[str]) -> None:
    resolve_config(config, sets)
    for text in sets:
        if text.partition("=")[0].strip() in _CHOSEN_HERE:
            raise BadInput(f"--set {text}: the demo chooses it, from --num_train_steps")


def _settings(uses: Sequence[str], config: str, sets: Sequence[str]) -> list[str]:
    """The flags for a command that uses these settings."""
    used = [text for text in sets if is_used(text.partition("=")[0].strip(), uses)]
    return ["--config", config, *(f"--set={text}" for text in used)]


def _make_data(work_dir: str, config: str, sets: Sequence[str]) -> dict[str, str]:
    """Corpus, tokenizer and shards; returns where each lies."""
    corpus, data = storage.join(work_dir, "corpus.jsonl"), storage.join(work_dir, "data")
    prefix = storage.join(work_dir, "tokenizer")
    _say("1. A corpus: generated Japanese articles in Wiki40b layout")
    size = [f"--documents={DOCUMENTS}", f"--seed={SAMPLE_SEED}"]
    bigbird_ja(["sample", "--output", corpus, *size])
    _say("2. A tokenizer")
    settings = _settings(_TOKENIZER, config, sets)
    bigbird_ja(["tokenize", *settings, "--input", corpus, "--output_prefix", prefix])
    _say("3. Training data: full sequences in shuffled shards, one part held out")
    source = ["--input", corpus, "--tokenizer", f"{prefix}.model"]
    settings = _settings(_DATA, config, sets)
    bigbird_ja(["make-data", *settings, *source, "--output_dir", data, "--num_workers=2"])
    return {"corpus": corpus, "tokenizer": f"{prefix}.model", "data": data}


def _train_twice(work_dir: str, arguments: list[str], kill_after: int) -> dict[str, Any]:
    """Trains with a kill, trains without, and compares the curves."""
    killed, whole = storage.join(work_dir, "run"), storage.join(work_dir, "run-uninterrupted")
    _say("4. Pretraining, killed with SIGKILL midway, as a preemption would")
    command = ["pretrain", *arguments, "--model_dir", killed]
    killed_at = run_and_kill(command, killed, kill_after)
    _say("5. The same command again: it resumes, in the data too")
    bigbird_ja(command)
    resumed_from = _resumed_from(killed)
    _say("6. The same run without interruption, to compare")
    bigbird_ja(["pretrain", *arguments, "--model_dir", whole])
    curve, reference = read_curve(killed), read_curve(whole)
    print(compare_curves(curve, reference, killed_at, resumed_from))
    return {
        "killed_at_step": killed_at,
        "resumed_from_step": resumed_from,
        "same_curve": curve == reference,
        "first_loss": curve[min(curve)],
        "last_loss": curve[max(curve)],
    }


def _look_at_it(work_dir: str, place: dict[str, str]) -> dict[str, Any]:
    """Evaluates, fills a mask and writes the report."""
    model = ["--model_dir", place["model"]]
    _say("7. Evaluation on held-out documents")
    evaluated = bigbird_ja(["evaluate", *model, "--data_dir", place["data"]])
    _say("8. What the model puts at [MASK]")
    filled = bigbird_ja(["fill-mask", *model, "--text", masked_sentence(place["corpus"])])
    _say("9. A page about the run")
    place["report"] = storage.join(work_dir, "report.html")
    bigbird_ja(["report", *model, "--output", place["report"]])
    return {"eval_loss": evaluated["masked_lm_loss"], "masks": filled["masks"]}


def bigbird_ja(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs one command as a user would, shows its output, and returns its `--json` results.

    Raises:
        CommandError: as the command ended.
    """
    with _started(arguments) as process:
        out, _ = process.communicate()
    results = _results(out)
    if process.returncode != 0 or not results:
        raise _end_of(arguments[0], process.returncode, results)
    return results


@contextlib.contextmanager
def _started(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A command that runs while the block does; what people read goes to standard error."""
    print(f"$ bigbird-ja {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with cleanup.ended(process):
        try:
            yield process
        except KeyboardInterrupt:  # perhaps told to this process alone: it may save what it has
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_PATIENCE_SECONDS)
            raise


def _results(out: str) -> dict[str, Any]:
    try:
        return dict(json.loads(out))
    except ValueError:
        return {}


def _end_of(name: str, status: int, results: dict[str, Any]) -> Exception:
    """What the end of a step means for the demo."""
    who = f"`bigbird-ja {name}`"
    if status == 0:
        return RuntimeError(f"{who} ended by itself, before the kill")
    if not results:
        return children.end_of(status, (), who, "close other programs and run the demo again")
    return of_reason(str(results.get("reason")), f"{who}: {results.get('error')}")


def run_and_kill(arguments: Sequence[str], model_dir: str, after_step: int) -> int:
    """Starts a command and kills it with SIGKILL once it has logged `after_step`.

    Returns:
        The last step that was logged before the kill; training that has passed that step already
        (the demo was interrupted here before) is left as it is.
    """
    logged = max(read_curve(model_dir), default=0)
    if logged >= after_step:
        return logged
    with _started(arguments) as process:
        while logged < after_step and process.poll() is None:
            time.sleep(0.05)
            logged = max(read_curve(model_dir), default=0)
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate()
    if process.returncode != -signal.SIGKILL:
        raise _end_of(arguments[0], process.returncode, _results(out))
    console.log(f"SIGKILL sent to training (process {process.pid}) after step {logged}.")
    return logged


def read_curve(model_dir: str) -> dict[int, float]:
    """Step to loss, from `metrics.jsonl`; empty where there is none yet."""
    try:
        text = storage.read_bytes(storage.join(model_dir, "metrics.jsonl")).decode()
    except FileNotFoundError:
        return {}
    lines = [line for line in text.split("\n")[:-1] if line]
    return {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}


def compare_curves(
    curve: dict[int, float], reference: dict[int, float], killed_at: int, resumed_from: int
) -> str:
    """A table of both curves around the kill, and whether they agree to the last bit."""
    rows = [
        (step, curve[step], reference.get(step, float("nan")), _mark(step, killed_at, resumed_from))
        for step in sorted(curve)
    ]
    same = "the same, to the last bit" if curve == reference else "NOT the same"
    header = ("step", "killed and resumed", "uninterrupted", "")
    return f"{console.table(rows, header)}\nThe two curves are {same}."


@dataclasses.dataclass(frozen=True)
class _Document:
    """A line of the generated corpus."""

    text: str


def masked_sentence(corpus: str) -> str:
    """A sentence of the corpus with one frequent word masked."""
    with open(corpus, "rb") as file:
        text = decode.decode_json(file.readline(), _Document, f"{corpus}: line 1").text
    for sentence in text.replace("\n", "。").split("。"):
        if "である" in sentence and not sentence.startswith("_"):
            return sentence.replace("である", "[MASK]", 1) + "。"
    raise RuntimeError("the first generated article has no sentence with である")


def _prepare(work_dir: str, overwrite: bool) -> None:
    if storage.is_remote(work_dir):
        raise BadInput(f"--work_dir {work_dir}: the demo needs a local folder")
    outputs.refuse_link(work_dir, "--work_dir")
    outputs.check_folder_place(work_dir, "--work_dir")
    marker = storage.join(work_dir, _MARKER)
    if os.path.isdir(work_dir) and os.listdir(work_dir) and not os.path.exists(marker):
        raise BadInput(f"--work_dir {work_dir}: holds something that no demo made: name another")
    if overwrite and os.path.exists(marker):
        _refuse_what_no_demo_made(work_dir)


@contextlib.contextmanager
def _alone(work_dir: str, overwrite: bool) -> Iterator[None]:
    """The folder, for this demo alone; an earlier one's work is removed first with `overwrite`."""
    storage.make_directory(work_dir)
    busy = f"--work_dir {work_dir}: {{owner}} runs the demo there: name another folder"
    with held(Lease(storage.join(work_dir, _LOCK), busy, console.log)):
        if overwrite:
            _remove_earlier_demo(work_dir)
        marker = storage.join(work_dir, _MARKER)
        storage.write_bytes(marker, b"This folder was made by `bigbird-ja demo`.\n")
        yield


def _refuse_what_no_demo_made(work_dir: str) -> None:
    names = set(os.listdir(work_dir)) - _MADE
    foreign = sorted(name for name in names if not name.startswith(storage.TEMPORARY_PREFIX))
    if foreign:
        raise BadInput(
            f"--work_dir {work_dir}: holds {foreign[0]}, which no demo made: move it, or name"
            " another folder"
        )


def _remove_earlier_demo(work_dir: str) -> None:
    """Removes what a demo makes. The marker goes last, so that a kill leaves a known folder.

    Raises:
        BadInput: something else is among it; nothing is removed then.
    """
    _refuse_what_no_demo_made(work_dir)
    names = sorted(set(os.listdir(work_dir)) - {_LOCK}, key=lambda name: name == _MARKER)
    for name in names:
        path = os.path.join(work_dir, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _resumed_from(model_dir: str) -> int:
    steps = [
        event.get("global_step")
        for event in run_log.read_events(model_dir)
        if event["event"] == "resumed"
    ]
    if not steps or steps[-1] is None:
        raise RuntimeError(f"{model_dir}/events.jsonl tells of no resume")
    return steps[-1]


def _mark(step: int, killed_at: int, resumed_from: int) -> str:
    if resumed_from < step <= killed_at:
        return "done twice"
    return "resumed" if step > killed_at else ""


def _check(result: dict[str, Any]) -> None:
    if not result["same_curve"]:
        raise RuntimeError("the resumed run's curve differs from the uninterrupted one's")
    if result["last_loss"] >= result["first_loss"]:
        raise RuntimeError(
            f"the loss did not fall: {result['first_loss']} to {result['last_loss']}"
        )


def _say(headline: str) -> None:
    print(f"\n== {headline}", flush=True)


def _closing_words(result: dict[str, Any], place: dict[str, str]) -> str:
    return f"""
== Done in {console.human_time(result["seconds"])}
The loss fell from {result["first_loss"]:.3f} to {result["last_loss"]:.3f}, \
{result["eval_loss"]:.3f} on held-out documents: it knows which pieces are
frequent, and no Japanese yet. Training was killed after step {result["killed_at_step"]}, resumed \
from step {result["resumed_from_step"]},
and gave the same curve as without the kill.

  corpus     {place["corpus"]}
  tokenizer  {place["tokenizer"]}
  data       {place["data"]}
  model      {place["model"]}
  report     {place["report"]}

Next, on your own text:
  bigbird-ja tokenize --input my.jsonl --output_prefix my/tokenizer
  bigbird-ja make-data --input my.jsonl --tokenizer my/tokenizer.model --output_dir my/data
  bigbird-ja plan --config base-4096 --data_dir my/data
  bigbird-ja pretrain --config tiny-cpu --data_dir my/data --model_dir my/model
  bigbird-ja export --model_dir {place["model"]} --output_dir exported"""
