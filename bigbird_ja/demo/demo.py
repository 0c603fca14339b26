"""Demo of the main commands, from `sample` to `report`, on a small generated corpus."""

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.demo.run_command import run_command
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.process import console
from bigbird_ja.storage import outputs
from bigbird_ja.storage.ownership import Owned

# File in the work directory with the losses that were logged before the kill.
_KILLED = "killed.json"
# Minimum of `num_train_steps`. With fewer steps, the kill would follow directly after a save.
_MIN_STEPS = 80
# Sentences that resemble the corpus, but are not in it. Expected at the masks: である, を, った.
# Each of these tokens is far likelier than the next candidate, so the prediction does not depend on
# rounding, which differs between CPUs.
_TEXTS = (
    "朝霧町（あさぎりまち）は、長野県の北部にある自治体[MASK]。",
    "朝霧の最高気温は33.1度、最低気温は氷点下5.2度[MASK]記録した。",
    "鉄道の普及とともに、朝霧の農業は大きく変わ[MASK]。",
)


@dataclass(frozen=True)
class DemoResult:
    """Result of the demo.

    Attributes:
        work_dir: folder with all files of the demo.
        killed_at_step: last step that was logged before the kill.
        resumed_from_step: step of the checkpoint from which the training resumed.
        first_loss: loss of the first logged step, in nats.
        last_loss: loss of the last logged step.
        eval_loss: masked-LM loss on held-out records.
        eval_accuracy: fraction of the masked tokens in these records that are predicted correctly.
        masks: candidates at each mask, the likeliest first.
        seconds: duration.
    """

    work_dir: str
    killed_at_step: int
    resumed_from_step: int
    first_loss: float
    last_loss: float
    eval_loss: float
    eval_accuracy: float
    masks: list[Any]
    seconds: float


def demo(
    *, work_dir: str | os.PathLike[str] = "out/demo", num_train_steps: int = 360
) -> DemoResult:
    """Run the main commands on a small generated corpus, each in its own process.

    The training is killed midway and resumed. The commands and their output are printed.

    Args:
        work_dir: local folder for all files of the demo. Rerun an interrupted demo in the same
            folder to continue it.
        num_train_steps: training steps, at least 80.

    Raises:
        BadInput: The folder contains files that are not from a demo.
        CommandError: A command failed, with its exit status.
        RuntimeError: The resume was not exact, or the loss did not fall.
    """
    work_dir = os.fspath(work_dir)
    if storage.is_remote(work_dir):
        raise BadInput(f"`work_dir` {work_dir} is on a bucket: name a local folder")
    if num_train_steps < _MIN_STEPS:
        raise BadInput(f"`num_train_steps` {num_train_steps}: must be at least {_MIN_STEPS}")
    outputs.check_folder(work_dir, "`work_dir`", "demo", "name another folder")
    storage.make_directory(work_dir)
    owned = Owned.create(work_dir, "demo")
    start = time.monotonic()
    found = _run_commands(owned, work_dir, num_train_steps)
    result = DemoResult(**found, seconds=round(time.monotonic() - start, 1))
    owned.write("demo.json", json.dumps(asdict(result)).encode())
    return result


def _run_commands(owned: Owned, work_dir: str, steps: int) -> dict[str, Any]:
    corpus, tokenizer, data, model = (
        storage.join(work_dir, name) for name in ("corpus.jsonl", "tokenizer.model", "data", "run")
    )

    def print_headline(text: str) -> None:
        print(f"\n== {text}", flush=True)

    config = ["--config", "tiny-cpu"]
    print_headline("1. A corpus: generated Japanese articles in Wiki40b layout")
    run_command(["sample", "--output", corpus, "--documents", "400", "--seed", "7"])
    print_headline("2. A tokenizer")
    prefix = tokenizer.removesuffix(".model")
    # The vocabulary is smaller than for real text, as the corpus contains few distinct characters.
    tokenize = ["tokenize", *config, "--vocab_size", "2000", "--input", corpus]
    run_command([*tokenize, "--output_prefix", prefix])
    print_headline("3. Training data: full sequences in shuffled shards, one part held out")
    text = ["--input", corpus, "--tokenizer", tokenizer]
    run_command(["make-data", *config, *text, "--output_dir", data, "--num_workers", "2"])
    pretrain = ["pretrain", *config, "--data_dir", data, "--model_dir", model]
    # The run is killed halfway between two saves, so that some logged steps are repeated.
    pretrain += ["--num_train_steps", str(steps), "--set", "checkpoints.save_every_minutes=60"]
    pretrain += ["--set", f"checkpoints.save_every_steps={steps // 4}"]
    print_headline("4. Pretraining, killed with SIGKILL midway, as a preemption would")
    killed = storage.join(work_dir, _KILLED)
    # If the file exists, an earlier demo in this folder has killed the training. Skip this stage.
    if not storage.exists(killed):
        at = steps * 3 // 8
        run_command(pretrain, kill_when=lambda: max(read_losses(model), default=0) >= at)
        owned.write(_KILLED, json.dumps(read_losses(model)).encode())
    print_headline("5. Rerun of the same command: it resumes, in the data too")
    run_command(pretrain)
    before = {int(step): loss for step, loss in json.loads(storage.read_bytes(killed)).items()}
    result = {"work_dir": work_dir, **compare_losses(model, before)}
    print_headline("6. Evaluation on held-out documents")
    evaluated = run_command(["evaluate", "--model_dir", model, "--data_dir", data])
    print_headline("7. Predictions at [MASK], in sentences that the corpus does not contain")
    texts = [word for text in _TEXTS for word in ("--text", text)]
    filled = run_command(["fill-mask", "--model_dir", model, *texts, "--top_k", "3"])
    print_headline("8. A page about the run")
    run_command(["report", "--model_dir", model, "--output", f"{work_dir}/report.html"])
    measured = {f"eval_{key}": evaluated[f"masked_lm_{key}"] for key in ("loss", "accuracy")}
    return {**result, **measured, "masks": filled["masks"]}


def read_losses(model_dir: str) -> dict[int, float]:
    """Read the logged losses of a run by step, without steps whose loss is missing."""
    lines = run_log.read_metrics(model_dir)
    return {line["step"]: line["loss"] for line in lines if line["loss"] is not None}


def compare_losses(model_dir: str, before: dict[int, float]) -> dict[str, Any]:
    """Print and compare the losses of steps that ran both before the kill and after the resume.

    Args:
        model_dir: folder of the run, resumed and finished.
        before: loss by step, as logged until the kill.

    Returns:
        The fields of `DemoResult` that contain steps of training or its losses, by name.

    Raises:
        RuntimeError: The losses differ, or the loss did not fall.
    """
    curve = read_losses(model_dir)
    resumes = [e for e in run_log.read_events(model_dir) if e["event"] == "resumed"]
    if not resumes:
        raise RuntimeError(f"{model_dir}/events.jsonl records no resume")
    resumed_from = resumes[0].get("global_step") or 0
    steps = [step for step in before if step > resumed_from]
    rows = [(step, repr(before[step]), repr(curve.get(step))) for step in steps]
    print(console.table(rows, ("step", "loss, uninterrupted", "loss, resumed")))
    if not steps or any(before[step] != curve.get(step) for step in steps):
        raise RuntimeError("the resumed run's losses differ from the uninterrupted ones")
    print("They are bit-identical.")
    first, last = curve[min(curve)], curve[max(curve)]
    if not last < first:
        raise RuntimeError(f"the loss did not fall: {first} to {last}")
    losses = {"first_loss": first, "last_loss": last}
    return {"killed_at_step": max(before), "resumed_from_step": resumed_from, **losses}


def summarize(result: DemoResult) -> str:
    """Format the result for users."""
    values = {**vars(result), "time": console.format_time(result.seconds)}
    return """
== Done in {time}: {work_dir}/report.html
It learned the phrases of the corpus: {eval_loss:.2f} nats ({first_loss:.2f} at first), and \
{eval_accuracy:.0%} of masked tokens right.
Killed at step {killed_at_step}, it resumed from step {resumed_from_step}: bit-identical losses.
Your own text, a line {{"text": "..."}} for each document: as above, without --vocab_size.
Hours and dollars for a real model: bigbird-ja plan --config base-4096""".format(**values)
