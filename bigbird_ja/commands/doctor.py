"""Shows what this machine has and lacks, and what to do about it.

  bigbird-ja doctor
  bigbird-ja doctor --project MY-PROJECT --json

Looks for packages, engines and the devices that they train on, memory and disk, Google credentials,
project and quotas. Exits with 0 if this machine can train, else with 2; what only `launch` needs
does not count. Writes nothing without --measure. Takes ten seconds, most of them to import
TensorFlow and jax.
"""

import itertools
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags
from bigbird_ja.process.errors import INSTALL, BadInput

EXAMPLE = "bigbird-ja doctor"
_CONSOLE = "the console's page IAM & Admin > Quotas lists them all"
_PARAGRAPH = textwrap.TextWrapper(
    79, subsequent_indent=" " * 22, break_long_words=False, break_on_hyphens=False
)
_DISK_BYTES = 10e9  # six checkpoints of a base model, 1.3 GB each, and what goes with them


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
        from bigbird_ja.commands.measure import measure

        return measure(args.work_dir, args.measure_config)
    checks = []
    for check in itertools.chain(_packages(), _room(), _engines(), _cloud(args.project)):
        checks.append(check)
        advice = f": {check.advice}" if check.advice and not check.is_well else ""
        text = f"{'ok' if check.is_well else '--'}  {check.name:<17} {check.observed}{advice}"
        print(_PARAGRAPH.fill(text), flush=True)
    able = [c for c in checks if c.name.startswith("engine") and c.is_well]
    results = {"can_train": bool(able), "checks": [asdict(check) for check in checks]}
    if not able:
        raise BadInput("this machine cannot train: see the lines on engines", results)
    print(f"this machine can train: {able[0].observed}")
    return results


def _packages() -> Iterator[Check]:
    import importlib.metadata
    import importlib.util
    import platform

    from bigbird_ja import __version__

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
    from bigbird_ja.process.console import human_bytes
    from bigbird_ja.train.engines.devices import available_bytes

    memory, free = available_bytes(), shutil.disk_usage(".").free
    yield Check("memory", True, "not known" if memory is None else f"{human_bytes(memory)} free")
    advice = "checkpoints of a base model take 8 GB: write to gs://, or to another disk"
    yield Check("disk", free >= _DISK_BYTES, f"{human_bytes(free)} free in this folder", advice)


def _engines() -> Iterator[Check]:
    """Checks each engine and finds the devices that it would train on."""
    from bigbird_ja.process.errors import require
    from bigbird_ja.train.engines import devices, has_estimator

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


def _cloud(project: str | None) -> Iterator[Check]:
    """Checks credentials, project and the quotas of TPUs that Compute Engine lists by region."""
    from bigbird_ja.launch import compute, rest

    try:
        project = project or rest.credentials()[1]
        regions = list(compute.regions(project)) if project else []
    except BadInput as error:
        yield Check("credentials", False, str(error))
        return
    except rest.ServiceFault as fault:
        yield Check("project", False, f"{project}", rest.advice(fault, str(project), "-", "a TPU"))
        return
    yield Check("credentials", True, "found")
    yield Check("project", bool(project), project or "none is set", "give --project")
    quotas = [
        f"{region['name']} {quota['metric']} {quota['usage']:g} of {quota['limit']:g}"
        for region in regions
        for quota in region.get("quotas", ())
        if "TPU" in quota["metric"] and quota["limit"]
    ]
    if project:
        yield Check("quota", bool(quotas), "; ".join(quotas) or "none is listed here", _CONSOLE)
