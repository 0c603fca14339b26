r"""Rent a spot TPU VM, train on it, recreate it after preemption, delete it at the end.

  bigbird-ja launch --name base-1 --config base-4096 --project MY-PROJECT \
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 40
  bigbird-ja launch --name mine-1 --config continue-8192 --init_from encoder --project MY-PROJECT \
      --bucket gs://MY-BUCKET --data_dir gs://MY-BUCKET/data --max_cost 5

Reads the config, the data set's manifest and --init_from. Writes BUCKET/NAME/model (checkpoints,
metrics, events: see `pretrain`) and BUCKET/NAME/supervisor. If --init_from is on this machine, also
uploads it to BUCKET/encoders/SHA256, and the TPU verifies this copy before it trains. Stays in the
foreground until the run is finished, which takes days: run it in tmux, or on a small VM. If it is
killed, rerun the same command, which adopts the machine. A TPU without a supervisor deletes itself
after --lease_hours, and no TPU lives longer than --max_hours and --max_cost allow. Settings and
data that the TPU would refuse are refused before it is rented. A zone that refuses the request is
skipped, and bills nothing. --dry_run needs no credentials, no project and no data, and takes a
second. docs/cloud-setup.md explains the set-up of an empty project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.cli.config import read_sets
from bigbird_ja.process.console import format_time
from bigbird_ja.settings.variants import list_used_settings

if TYPE_CHECKING:
    from bigbird_ja.launch.dry_run import DryRun
    from bigbird_ja.launch.session import LaunchResult

EXAMPLE = "bigbird-ja launch --config base-4096 --max_cost 40 --dry_run"
SETTINGS = list_used_settings("launch")
REQUIRES_CONFIG = True
_PARAMETERS = (
    *("num_train_steps", "name", "project", "bucket", "data_dir", "init_from", "mode"),
    *("accelerator_type", "zones", "engine", "service", "pricing", "queued", "max_hours"),
    *("max_cost", "price_per_hour", "lease_hours", "poll_seconds", "on_interrupt", "price_file"),
    *("runtime_version", "service_account", "network", "subnetwork", "external_ip", "vm_python"),
    "dry_run",
)


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    needed: dict[str, Any] = {"required": True, "unless": "dry_run", "filled": True}
    flags.text("name", "Name of the run, its TPU and its folder.", **needed)
    flags.text("project", "Id of the Google Cloud project.", **needed)
    about = {"default": [], "commas": True, "none": "the zones known for the type"}
    flags.text("zones", "Zones to try in this order.", **about)
    flags.text(
        "accelerator_type",
        "TPU type: v5e-8, v6e-8, v5p-8, v4-8, v3-8, ..., or a slice of several hosts such as"
        " v5e-32.",
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
    engine = "Engine, as for `pretrain`; pjrt installs its own Python, TensorFlow, jax and libtpu."
    flags.choice("engine", ("auto", "estimator", "pjrt"), engine)
    flags.choice(
        "service",
        ("auto", "compute", "tpu"),
        "Service that rents the TPU: Compute Engine (v5p, v6e, v7x) or the Cloud TPU API (all but"
        " v7x; TRC grants are valid only here). auto: the first of the two that offers the TPU.",
    )
    flags.choice(
        "pricing",
        ("spot", "on_demand", "on-demand"),
        "Pricing; spot is preemptible, and cheaper (`plan` has both prices).",
    )
    flags.switch(
        "queued", "Request a queued resource of the Cloud TPU API, which waits for capacity."
    )
    flags.switch("dry_run", "Only print machine, limits and cost; with --json also each request.")
    flags.group = "Limits"
    hours: dict[str, Any] = {"unit": "hours", "low": 0.0001}
    usd: dict[str, Any] = {"unit": "US dollars", "high": 1e9}
    limit = {"none": "no limit"}
    end = "Maximum time from the start of the run to its end. This or --max_cost is required."
    lease = "Lifetime of a TPU without supervisor; then it deletes itself."
    flags.number("max_hours", None, end, high=1e6, **limit, **hours)
    cost = "Maximum cost of TPU time; then the run ends. This or --max_hours is required."
    flags.number("max_cost", None, cost, low=0.01, **limit, **usd)
    price = "Price of the TPU an hour, in place of the table's; 0 for a grant such as TRC's."
    flags.number("price_per_hour", None, price, low=0, none="the most expensive zone's", **usd)
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
        "vm_python",
        "Python of the VM's image, for installation and watcher; TPUEstimator also trains with it.",
        default="python3",
    )
    flags.switch("external_ip", "Give the VM an external address.", default=True)


def run(args: Args) -> LaunchResult | DryRun:
    """Launch a run, watch it, and delete its machine at the end."""
    from bigbird_ja.launch.dry_run import DryRun
    from bigbird_ja.launch.session import launch

    own: dict[str, Any] = {name: args[name].value for name in _PARAMETERS}
    result = launch(config=args.config, overrides=read_sets(args.set), **own)
    if isinstance(result, DryRun):
        _print_dry_run(result)
    else:
        _print_outcome(result)
    return result


def _print_dry_run(dry: DryRun) -> None:
    machine, cost = dry.machine, dry.cost
    queue = ", in the queue" if machine.queued else ""
    hours, usd = cost.most_hours, cost.usd_per_hour
    lease = (
        "a week each" if hours is None else f"at most {format_time(hours * 3600)} of rented time"
    )
    price = f"{usd:,.2f} USD per hour in the dearest zone" if usd else "not counted"
    most = "" if cost.most_usd is None else f"; at most {cost.most_usd:,.2f} USD"
    source = f", from {dry.init_from}" if dry.init_from else ""
    print(
        "dry run: nothing was requested, nothing is billed\n"
        f"machine  {machine.accelerator_type}, {machine.pricing.replace('_', ' ')}{queue}: chips"
        f" {machine.chips}, hosts {machine.hosts}, image {machine.image}\n"
        f"zones    {', '.join(machine.zones)}, in this order\n"
        f"         a zone may refuse the request ({machine.zones_by}, read"
        f" {machine.zones_as_of})\n"
        f"lease    {lease}; deletes itself {cost.lease_hours:g} h after the supervisor is gone\n"
        f"cost     {price}{most}\n"
        f"         {cost.prices}\n"
        f"{dry.needs_text}\n"
        f"run      {dry.name}: {dry.num_train_steps:,} steps on {dry.data_dir}{source}\n"
        "the requests and the start-up script: --json"
    )


def _print_outcome(result: LaunchResult) -> None:
    if result.state == "detached":
        return
    cost = f", {result.cost_usd:.2f} US dollars" if result.cost_usd else ""
    print(
        f"{result.message}: {result.preemptions} preemptions, {result.failures} failures,"
        f" {result.tpu_hours:.2f} TPU hours{cost}"
    )
    print(f"model: {result.model_dir}")
