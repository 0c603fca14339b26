r"""Rent a spot TPU VM, train on it, recreate it after preemption, delete it at the end.

  bigbird-ja launch --name base-1 --config base-4096 --project MY-PROJECT \
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 40
  bigbird-ja launch --name mine-1 --config continue-8192 --init_from encoder --project MY-PROJECT \
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 5

Reads the config, the data set's manifest and --init_from. Writes BUCKET/NAME/model (checkpoints,
metrics, events: see `pretrain`), BUCKET/NAME/supervisor and, for a model on this machine,
BUCKET/encoders/SHA256, which the TPU verifies before it trains. Stays in the foreground until the
run is finished, which takes days: keep it in tmux, or on a small VM. If it dies, run the same
command again: it adopts the machine. A TPU without supervisor deletes itself after --lease_hours;
none lives longer than --max_hours and --max_cost allow. Before anything is created it asks the
services which zones offer the machine (`doctor --project` shows the answers). --dry_run needs no
credentials, no project and no data, and takes a second. docs/cloud-setup.md leads from an empty
project to here.
"""

from __future__ import annotations

import functools
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import resolve
from bigbird_ja.settings.variants import used_by

EXAMPLE = "bigbird-ja launch --config base-4096 --max_cost 40 --dry_run"
SETTINGS = used_by("launch")


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    needed: dict[str, Any] = {"required": True, "unless": "dry_run", "filled": True}
    flags.text("name", "Name of run, TPU and folder.", **needed)
    flags.text("project", "Id of the Google Cloud project.", **needed)
    about = {"default": [], "commas": True, "none": "those known for the type"}
    flags.text("zones", "Zones to try in this order.", **about)
    flags.text(
        "accelerator_type",
        "v5e-8, v6e-8, v5p-8, v4-8, v3-8, ..., and slices of several hosts such as v5e-32.",
        default="v5e-8",
    )
    flags.text("bucket", "gs://BUCKET[/FOLDER] of all files of the run.", **needed)
    flags.text("data_dir", "Data set of `make-data`, on gs://.", **needed)
    flags.path(
        "init_from", "Model to start from, as for `pretrain`; one on this machine is uploaded once."
    )
    evaluates = "Mode; train_and_eval also evaluates every training.eval_every_steps steps."
    flags.choice("mode", ("train", "train_and_eval"), evaluates)
    flags.setting("training.num_train_steps")
    engine = "Engine, as for `pretrain`; pjrt brings its own Python, TensorFlow, jax and libtpu."
    flags.choice("engine", ("auto", "estimator", "pjrt"), engine)
    flags.choice(
        "service",
        ("auto", "compute", "tpu"),
        "Service that rents the TPU: Compute Engine (v5p, v6e, v7x) or the Cloud TPU API (all but"
        " v7x; the one where TRC grants count). auto: the first of them that offers it.",
    )
    flags.choice(
        "pricing",
        ("spot", "on_demand", "flex-start"),
        "Pricing. spot: preemptible, and cheaper (`plan` has both prices). flex-start: v5e and v6e"
        " from a queue, deleted by the cloud after --max_hours; needs gcloud.",
    )
    flags.switch(
        "queued", "Request a queued resource of the Cloud TPU API, which waits for capacity."
    )
    flags.switch("dry_run", "Only print machine, limits and cost; with --json also each request.")
    flags.group = "Limits"
    hours: dict[str, Any] = {"unit": "hours", "low": 0.0001}
    usd: dict[str, Any] = {"unit": "US dollars", "low": 0.01, "high": 1e9, "none": "no limit"}
    end = "Maximum time from the start of the run, which ends then."
    lease = "Lifetime of a TPU without supervisor; then it deletes itself."
    flags.number("max_hours", None, end, high=1e6, none="no limit", **hours)
    flags.number("max_cost", None, "Maximum cost of TPU time; then the run ends.", **usd)
    flags.number("lease_hours", 12.0, lease, high=168, **hours)
    poll = {"low": 0.05, "high": 86_400}
    flags.number("poll_seconds", 30.0, "Time between polls of the service.", unit="seconds", **poll)
    policy = "Reaction to Ctrl-C; ask: a question on a terminal, else delete."
    flags.choice("on_interrupt", ("ask", "delete", "detach"), policy)
    flags.path("price_file", "YAML file that overrides the price table.")
    flags.group = "Machine"
    flags.text("runtime_version", "Image of the TPU VM.", none="chosen for the type")
    flags.text("service_account", "Account of the VM.", none="the project's default")
    flags.text("network", "VPC network.", none="the project's default")
    flags.text("subnetwork", "VPC subnetwork.", none="the network's")
    flags.text(
        "vm_python", "Python of the VM's image; only TPUEstimator uses it.", default="python3"
    )
    flags.switch("external_ip", "External address of the VM.", default=True)
    flags.switch("update_package", "Replace the package of an existing run by this installed code.")


def run(args: Args) -> dict[str, Any]:
    """Launch a run, watch it, and delete its machine at the end."""
    from bigbird_ja.launch import session

    return session.launch(args, functools.partial(resolve, args))
