"""Shows what this machine has and lacks, and what to do about it.

  bigbird-ja doctor
  bigbird-ja doctor --project MY-PROJECT --json

Looks for packages, engines and the devices that they train on, memory and disk, and Google
credentials. Asks both services which TPUs they offer the project, in which zones, by which quota.
Exits with 0 if this machine can train, else with 2; what only `launch` needs does not count. Writes
nothing without --measure. Takes ten seconds, most of them to import TensorFlow and jax.
"""

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags

EXAMPLE = "bigbird-ja doctor"


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


def run(args: Args) -> dict[str, Any]:
    """Check this machine, or measure it."""
    if args.measure:
        from bigbird_ja.workflows import measure

        return measure.measure(args.work_dir, args.measure_config)
    from bigbird_ja.workflows import machine_checks

    return machine_checks.run(args.project)
