r"""Train or resume, on CPU, GPU or TPU.

  bigbird-ja pretrain --config base-4096 --use_tpu \
    --data_dir gs://BUCKET/data --model_dir gs://BUCKET/run

Reads DATA_DIR (manifest.json, tokenizer.model, shards). Writes MODEL_DIR: checkpoints, config.yaml,
tokenizer.model, metrics.jsonl, eval.jsonl, heartbeat.json, events.jsonl, TensorBoard event files.
Rerun the same command to resume from the last checkpoint; --config may be left out, and --set may
change settings of `training`. If the run is finished, the command says so. After SIGTERM, SIGHUP,
Ctrl-C, --max_train_minutes or a closed standard error, the command saves and exits with status 75.
The preset tiny-cpu takes minutes on two CPU cores; `bigbird-ja plan` estimates the time and cost of
the others on TPUs.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import read_sets
from bigbird_ja.errors import CommandError
from bigbird_ja.settings.variants import list_used_settings

if TYPE_CHECKING:
    from bigbird_ja.data.manifest import Manifest
    from bigbird_ja.train.job import PretrainResult

EXAMPLE = "bigbird-ja pretrain --config tiny-cpu --data_dir out/data --model_dir out/model"
# Each engine checks the other packages that it requires.
NEEDS = ("tensorflow",)
SETTINGS = list_used_settings("pretrain")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.path("data_dir", "Data set made by `make-data`, on disk or gs://.", required=True)
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    flags.setting("training.num_train_steps")
    flags.setting("training.learning_rate")
    flags.setting("training.global_batch_size")
    flags.choice(
        "engine",
        ("auto", "estimator", "pjrt"),
        "Engine that runs the step. estimator: TPUEstimator (TensorFlow 2.15; CPU, TPU v2 and v3);"
        " pjrt: JAX's runtime (CPU, GPU, any TPU). auto: estimator on a TPU v2 or v3 with"
        " TensorFlow 2.15, else pjrt; the log states the choice and the reason.",
    )
    flags.switch("use_tpu", "Train on a TPU instead of CPU or GPU.")
    flags.setting("tpu.name", needs="use_tpu")
    wait = "Maximum wait at the start for the other processes of a pod (docs/pods.md)."
    flags.integer("pod_wait_seconds", 300, wait, unit="seconds", low=1, high=86_400)
    flags.path(
        "init_from",
        "Initial weights: a Hugging Face folder or its name on the Hub, a MODEL_DIR of bigbird-ja,"
        " or Google's BigBird TensorFlow checkpoint. Resuming needs no flag.",
    )
    flags.number(
        "max_train_minutes",
        None,
        "Time from the start of the command, start-up and compilation included, after which it"
        " saves and stops (status 75).",
        unit="minutes",
        low=0.01,
        high=1e6,
        none="until training.num_train_steps",
    )
    evaluates = "Mode. train_and_eval also evaluates every training.eval_every_steps steps."
    flags.choice("mode", ("train", "train_and_eval"), evaluates)
    moved = "Move an existing run to MODEL_DIR.replaced-N and start a new one."
    flags.switch("overwrite", moved)
    flags.text(
        "profile_steps",
        "Steps to profile, as FIRST-LAST, such as 100-110; TensorBoard's profile plug-in and xprof"
        " show MODEL_DIR/plugins/profile.",
    )
    flags.switch("wandb", "Log to Weights & Biases, too, which must be installed.")


def run(args: Args) -> PretrainResult:
    """Train or resume, and log the next command."""
    from bigbird_ja.cli.spelling import spell_flags
    from bigbird_ja.plan.compare import describe_rate
    from bigbird_ja.process import console, streams
    from bigbird_ja.train.job import Dependencies
    from bigbird_ja.train.start import pretrain

    def leave(error: CommandError) -> None:
        """End the process with an error, from any thread."""
        error.args = (spell_flags(str(error), set(args)),)
        streams.leave(error)

    def summarize(manifest: Manifest) -> None:
        """Log the measured and predicted tokens per second, and the next command to run."""
        if rate := describe_rate(args.model_dir, manifest):
            console.log(rate)
        data, model = shlex.quote(args.data_dir), shlex.quote(args.model_dir)
        command = f"export --model_dir {model} --output_dir NEW_FOLDER"
        if args.mode == "train" and manifest.eval.sequences:
            command = f"evaluate --model_dir {model} --data_dir {data}"
        console.log(f"next: bigbird-ja {command}")

    return pretrain(
        data_dir=args.data_dir,
        model_dir=args.model_dir,
        config=args.config or None,
        overrides=read_sets(args.set),
        num_train_steps=args.num_train_steps,
        learning_rate=args.learning_rate,
        batch_size=args.batch_size,
        engine=args.engine,
        use_tpu=args.use_tpu,
        tpu_name=args.tpu_name,
        pod_wait_seconds=args.pod_wait_seconds,
        init_from=args.init_from,
        mode=args.mode,
        max_train_minutes=args.max_train_minutes,
        overwrite=args.overwrite,
        profile_steps=args.profile_steps,
        wandb=args.wandb,
        deps=Dependencies(leave=leave, summarize=summarize),
    )
