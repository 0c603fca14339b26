"""the whole road on a small generated corpus, on this machine's CPU

Makes a corpus, trains a tokenizer, makes data, pretrains a tiny BigBird, kills its own training
with SIGKILL midway, resumes it, compares the curve with an uninterrupted run's, evaluates, fills a
masked sentence and writes a report. Every step is one of the commands, run as you would run it.

Reads nothing. Writes everything under --work_dir; run again, it continues what is there. Takes
under 5 minutes on two cores.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags as absl_flags

from bigbird_ja import storage
from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.process import children, console
from bigbird_ja.process.errors import BadInput, of_reason
from bigbird_ja.run import log as run_log
from bigbird_ja.storage import outputs, ownership
from bigbird_ja.storage.ownership import Owned

EXAMPLE = "bigbird-ja demo --work_dir demo"

_INTERRUPT_SECONDS = 10.0  # how long an interrupted command may take to save


def define_flags(flags: Flags) -> None:
    """The command's own flags."""
    flags.path(
        "work_dir", "Folder for everything that the demo makes; what is there is continued.",
        default="out/demo",
    )  # fmt: skip
    flags.integer("num_train_steps", 200, "Training steps.", unit="steps", low=40, high=10**9)


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Runs every command in its place in `--work_dir`.

    Raises:
        BadInput: the folder holds something that no demo made.
        RuntimeError: the demo did not show what it promises; the message says what.
    """
    work_dir, steps = args.work_dir, args.num_train_steps
    if storage.is_remote(work_dir):
        raise BadInput(f"--work_dir {work_dir}: the demo needs a local folder")
    outputs.check_folder_place(work_dir, "--work_dir")
    ownership.check_folder(work_dir, "--work_dir", "demo", "name another folder")
    storage.make_directory(work_dir)
    owned = Owned.create(work_dir, "demo")
    start = time.monotonic()
    result = _run_commands(work_dir, steps)
    result["seconds"] = round(time.monotonic() - start, 1)
    owned.write("demo.json", json.dumps(result).encode())
    print(_summary(result))
    return result


def _run_commands(work_dir: str, steps: int) -> dict[str, Any]:
    corpus, tokenizer, data = (
        storage.join(work_dir, name) for name in ("corpus.jsonl", "tokenizer.model", "data")
    )
    model, whole = storage.join(work_dir, "run"), storage.join(work_dir, "run-uninterrupted")

    def headline(text: str) -> None:
        print(f"\n== {text}", flush=True)

    config = ["--config", "tiny-cpu"]
    headline("1. A corpus: generated Japanese articles in Wiki40b layout")
    bigbird_ja(["sample", "--output", corpus, "--documents=400", "--seed=7"])
    headline("2. A tokenizer")
    prefix = tokenizer.removesuffix(".model")
    # Fewer pieces than real text needs: the generated one has few characters.
    tokenize = ["tokenize", *config, "--vocab_size=2000", "--input", corpus]
    bigbird_ja([*tokenize, "--output_prefix", prefix])
    headline("3. Training data: full sequences in shuffled shards, one part held out")
    text = ["--input", corpus, "--tokenizer", tokenizer]
    bigbird_ja(["make-data", *config, *text, "--output_dir", data, "--num_workers=2"])
    # Often enough that the kill finds a checkpoint to resume from, rarely enough to lose steps.
    pretrain = ["pretrain", *config, "--data_dir", data, f"--num_train_steps={steps}"]
    pretrain += [f"--set=checkpoints.save_every_steps={steps // 6}", "--model_dir"]
    headline("4. Pretraining, killed with SIGKILL midway, as a preemption would")
    if last_step(model) < steps // 2:  # else an interrupted demo has done this
        bigbird_ja([*pretrain, model], kill_when=lambda: last_step(model) >= steps // 2)
    killed_at = last_step(model)
    headline("5. The same command again: it resumes, in the data too")
    bigbird_ja([*pretrain, model])
    headline("6. The same run without interruption, to compare")
    bigbird_ja([*pretrain, whole])
    result = {"work_dir": work_dir, **compare_runs(model, whole, killed_at)}
    headline("7. Evaluation on held-out documents")
    evaluated = bigbird_ja(["evaluate", "--model_dir", model, "--data_dir", data])
    headline("8. What the model puts at [MASK]")
    filled = bigbird_ja(["fill-mask", "--model_dir", model, "--text", "この城は[MASK]である。"])
    headline("9. A page about the run")
    bigbird_ja(["report", "--model_dir", model, f"--output={work_dir}/report.html"])
    return {**result, "eval_loss": evaluated["masked_lm_loss"], "masks": filled["masks"]}


def bigbird_ja(
    arguments: Sequence[str], kill_when: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Runs one command as a user would, shows its output, and returns its `--json` results.

    Args:
        arguments: of the command line.
        kill_when: polled; once true, the command is killed with SIGKILL.

    Raises:
        CommandError: with the command's exit status and message.
        RuntimeError: the command that was to be killed ended before.
    """
    print(f"$ bigbird-ja {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with children.kill_on_exit(process):
        try:
            while kill_when and process.poll() is None:
                time.sleep(0.05)
                if kill_when():
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            out, _ = process.communicate()
        except KeyboardInterrupt:  # perhaps sent to this process alone: the command may save
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_INTERRUPT_SECONDS)
            raise
    if kill_when and process.returncode == -signal.SIGKILL:
        console.log(f"SIGKILL sent to process {process.pid}")
        return {}
    subject = f"`bigbird-ja {arguments[0]}`"
    results: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        results = json.loads(out)
    if not results:
        advice = "close other programs and run the demo again"
        raise children.error_from_exit(process.returncode, (), subject, advice)
    if process.returncode:
        raise of_reason(str(results.get("reason")), f"{subject}: {results.get('error')}")
    if kill_when:
        raise RuntimeError(f"{subject} ended by itself, before the kill")
    return results


def last_step(model_dir: str) -> int:
    """The last step that is logged; 0 where there is none yet."""
    return max((line["step"] for line in run_log.read_metrics(model_dir)), default=0)


def compare_runs(model: str, whole: str, killed_at: int) -> dict[str, Any]:
    """Prints the curves of the resumed and the uninterrupted run side by side.

    Raises:
        RuntimeError: they differ, in the last bit even; or the loss did not fall.
    """
    curve, reference = (
        {line["step"]: line["loss"] for line in run_log.read_metrics(run)} for run in (model, whole)
    )
    resumes = [e for e in run_log.read_events(model) if e["event"] == "resumed"]
    if not resumes:
        raise RuntimeError(f"{model}/events.jsonl records no resume")
    resumed_from = resumes[-1].get("global_step") or 0
    rows = []
    for step, loss in curve.items():
        note = "resumed" if step > killed_at else "done twice" if step > resumed_from else ""
        rows.append((step, loss, reference.get(step, float("nan")), note))
    print(console.table(rows, ("step", "killed and resumed", "uninterrupted", "")))
    if curve != reference:
        raise RuntimeError("the resumed run's curve differs from the uninterrupted one's")
    print("The two curves are the same, to the last bit.")
    first, last = curve[min(curve)], curve[max(curve)]
    if first is None or last is None or last >= first:
        raise RuntimeError(f"the loss did not fall: {first} to {last}")
    steps = {"killed_at_step": killed_at, "resumed_from_step": resumed_from}
    return {**steps, "same_curve": True, "first_loss": first, "last_loss": last}


def _summary(result: dict[str, Any]) -> str:
    loss = "from {first_loss:.3f} to {last_loss:.3f}, {eval_loss:.3f} on held-out documents"
    return f"""
== Done in {console.human_time(result["seconds"])}
The loss fell {loss.format(**result)}:
the model knows which pieces are frequent, and no Japanese yet. See
{result["work_dir"]}/report.html.
Next, on your own text:
  bigbird-ja tokenize --input my.jsonl --output_prefix my/tokenizer
  bigbird-ja make-data --input my.jsonl --tokenizer my/tokenizer.model --output_dir my/data
  bigbird-ja plan --config base-4096 --data_dir my/data
  bigbird-ja pretrain --config tiny-cpu --data_dir my/data --model_dir my/model"""
