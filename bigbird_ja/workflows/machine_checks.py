"""Checks of this machine for training and for renting TPUs."""

import importlib.metadata
import importlib.util
import itertools
import platform
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import human_bytes, table
from bigbird_ja.process.extras import INSTALL, require

_PARAGRAPH = textwrap.TextWrapper(
    79, subsequent_indent=" " * 22, break_long_words=False, break_on_hyphens=False
)
_DISK_BYTES = 10e9  # six checkpoints of a base model, 1.3 GB each, and its logs


@dataclass(frozen=True)
class Check:
    """Result of one check of this machine."""

    name: str
    is_well: bool
    observed: str
    advice: str = ""


def run(project: str | None) -> dict[str, Any]:
    """Check this machine, print each finding, and return the `--json` results.

    Args:
        project: id of the Google Cloud project; None for that of the credentials.

    Raises:
        BadInput: this machine cannot train.
    """
    checks = []
    offers: list[dict[str, Any]] = []
    for check in itertools.chain(_packages(), _room(), _engines(), _cloud(project, offers)):
        checks.append(check)
        advice = f": {check.advice}" if check.advice and not check.is_well else ""
        text = f"{'ok' if check.is_well else '--'}  {check.name:<17} {check.observed}{advice}"
        print(_PARAGRAPH.fill(text), flush=True)
    able = [c for c in checks if c.name.startswith("engine") and c.is_well]
    results = {"can_train": bool(able), "checks": [asdict(check) for check in checks]}
    results |= {"offers": offers} if offers else {}
    if not able:
        raise BadInput("this machine cannot train: see the lines on engines", results)
    print(f"this machine can train: {able[0].observed}")
    return results


def _packages() -> Iterator[Check]:
    yield Check("bigbird-ja", True, f"{__version__}, Python {platform.python_version()}")
    by_module = importlib.metadata.packages_distributions()
    for module, advice in INSTALL.items():
        if module == "tensorflow_estimator":
            continue  # see `_engines`
        if importlib.util.find_spec(module) is None:
            yield Check(module, False, "not installed", advice)
        else:
            names = sorted(by_module.get(module, []), key=len)
            version = importlib.metadata.version(names[0]) if names else "of this image"
            yield Check(module, True, version)


def _room() -> Iterator[Check]:
    from bigbird_ja.train.engines.host_memory import available_bytes

    memory, free = available_bytes(), shutil.disk_usage(".").free
    yield Check("memory", True, "not known" if memory is None else f"{human_bytes(memory)} free")
    advice = "checkpoints of a base model take 8 GB: write to gs://, or to another disk"
    yield Check("disk", free >= _DISK_BYTES, f"{human_bytes(free)} free in this folder", advice)


def _engines() -> Iterator[Check]:
    """Check each engine, and find the devices that it would train on."""
    from bigbird_ja.train.engines import devices
    from bigbird_ja.train.engines.choose import has_estimator

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


def _cloud(project: str | None, rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Check credentials and project, and ask both services what they offer the project.

    Args:
        project: id of the Google Cloud project; None for that of the credentials.
        rows: list to which a row for each machine and service is added.
    """
    from bigbird_ja.accelerators.prices import load_prices
    from bigbird_ja.launch import offers, rest
    from bigbird_ja.launch.advice import advise
    from bigbird_ja.launch.launched_run import LaunchedRun

    try:
        project = project or rest.credentials()[1]
        offered, faults = offers.make_rows(project, load_prices()) if project else ([], [])
    except BadInput as error:
        yield Check("credentials", False, str(error))
        return
    yield Check("credentials", True, "found")
    yield Check("project", bool(project), project or "none is set", "give --project")
    rows += offered
    place = LaunchedRun("", "", project=str(project), accelerator_type="a TPU")
    for text in dict.fromkeys(advise(fault, place) for fault in faults):
        yield Check("offers", False, "a list can't be read, the package's table serves", text)
    cells: list[tuple[str, str, str, str]] = []
    for row in offered:
        name, service, zones = row["accelerator_type"], row["service"], row["zones"]
        for why in sorted({*zones.values()}):
            places = ", ".join(zone for zone in zones if zones[zone] == why)
            cells.append((name, service, why or "offered", places))
        cells.append((name, service, "counts against the quota", row["quota"]))
    if cells:
        print(table(cells, ("type", "--service", "", "zones")))
