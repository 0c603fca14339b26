"""Check what this machine has and lacks for training, and what to do about it.

  bigbird-ja doctor
  bigbird-ja doctor --project MY-PROJECT --json

Checks packages, engines and their devices, memory, disk and Google credentials. Asks both TPU
services which TPUs they offer the project, in which zones, under which quota. Exits with 0 if this
machine can train, else with 2; requirements of `launch` do not count. Writes nothing without
--measure. Takes ten seconds, mostly to import TensorFlow and jax.
"""

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags

EXAMPLE = "bigbird-ja doctor"


def define_flags(flags: Flags) -> None:
    """Define the command's own flags."""
    flags.switch(
        "measure",
        "Measures training steps on generated data and compares them with the prediction of"
        " `preflight`; writes measured.json and measured.html (ten minutes on a TPU).",
    )
    configs = "Preset or YAML file of settings to measure."
    default = ["base-4096", "modernbert-8192"]
    flags.text("measure_config", configs, many=True, default=default, needs="measure")
    flags.path(
        "work_dir",
        "Local folder for the files of --measure.",
        default="out/measure",
        needs="measure",
    )
    flags.text("project", "Id of the Google Cloud project.", none="that of the credentials")


def run(args: Args) -> dict[str, Any]:
    """Check this machine, or measure it."""
    if args.measure:
        from bigbird_ja.workflows import measure

        return measure.measure(args.work_dir, args.measure_config)
    from bigbird_ja.workflows import machine_checks

    return machine_checks.run(args.project)
