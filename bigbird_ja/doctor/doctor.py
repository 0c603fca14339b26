"""Checks whether this machine can train models and rent TPUs."""

import importlib.metadata
import importlib.util
import itertools
import platform
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import bigbird_ja
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import format_bytes
from bigbird_ja.process.extras import INSTALL, require

# Disk space for six checkpoints of a base model, 1.3 GB each, and for logs.
_DISK_BYTES = 10e9


@dataclass(frozen=True)
class Check:
    """Result of one check of this machine."""

    name: str
    is_well: bool
    observed: str
    advice: str = ""

    @property
    def is_engine(self) -> bool:
        """Whether the check is about an engine of `pretrain`."""
        return self.name.startswith("engine")


@dataclass(frozen=True)
class DoctorResult:
    """Results of all checks of this machine.

    Attributes:
        can_train: whether at least one training engine can be used on this machine.
        checks: results of the checks, in the order in which they ran.
    """

    can_train: bool
    checks: list[Check]


def doctor(*, on_check: Callable[[Check], None] = lambda check: None) -> DoctorResult:
    """Check whether this machine can train models and rent TPUs.

    Args:
        on_check: callback for each result, called as soon as it is known.

    Raises:
        BadInput: This machine cannot train. The error's `results` contain the checks.
    """
    checks = []
    for check in itertools.chain(
        _check_packages(), _check_space(), _check_engines(), _check_cloud()
    ):
        checks.append(check)
        on_check(check)
    result = DoctorResult(any(c.is_engine and c.is_well for c in checks), checks)
    if not result.can_train:
        raise BadInput("this machine cannot train: see the lines about engines", asdict(result))
    return result


def describe(check: Check, width: int) -> str:
    """Format a check as a paragraph of at most `width` columns."""
    advice = f": {check.advice}" if check.advice and not check.is_well else ""
    text = f"{'ok' if check.is_well else '--'}  {check.name:<17} {check.observed}{advice}"
    wrapped = textwrap.TextWrapper(
        width, subsequent_indent=" " * 22, break_long_words=False, break_on_hyphens=False
    )
    return wrapped.fill(text)


def _check_packages() -> Iterator[Check]:
    yield Check("bigbird-ja", True, f"{bigbird_ja.__version__}, Python {platform.python_version()}")
    by_module = importlib.metadata.packages_distributions()
    for module, advice in INSTALL.items():
        # `_check_engines` checks `tensorflow_estimator`.
        if module == "tensorflow_estimator":
            continue
        if importlib.util.find_spec(module) is None:
            yield Check(module, False, "not installed", advice)
        else:
            names = sorted(by_module.get(module, []), key=len)
            version = importlib.metadata.version(names[0]) if names else "of this image"
            yield Check(module, True, version)


def _check_space() -> Iterator[Check]:
    from bigbird_ja.train.engines.host_memory import find_available_bytes

    memory, free = find_available_bytes(), shutil.disk_usage(".").free
    yield Check("memory", True, "unknown" if memory is None else f"{format_bytes(memory)} free")
    advice = "checkpoints of a base model require 8 GB: write to gs://, or to another disk"
    yield Check("disk", free >= _DISK_BYTES, f"{format_bytes(free)} free in this folder", advice)


def _check_engines() -> Iterator[Check]:
    """Check whether the engines `pjrt` and `estimator` can be used, and on which devices."""
    from bigbird_ja.train.engines import devices
    from bigbird_ja.train.engines.choose import has_estimator

    is_there = False
    try:
        # Both engines read records with TensorFlow.
        require("tensorflow")
        is_there = has_estimator()
        trained_on = devices.find(devices.is_there(devices.TPU_FILES))
        yield Check("engine pjrt", True, f"pjrt on {trained_on.description}")
    except BadInput as error:
        yield Check("engine pjrt", False, "cannot be used", str(error))
    observed = "estimator on CPU, TPU v2 or v3" if is_there else "no TensorFlow 2.15"
    yield Check("engine estimator", is_there, observed, INSTALL["tensorflow_estimator"])


def _check_cloud() -> Iterator[Check]:
    """Check the Google credentials, and whether they name a project."""
    from bigbird_ja.launch import rest

    try:
        _, project = rest.get_credentials()
    except BadInput as error:
        yield Check("credentials", False, str(error))
        return
    yield Check("credentials", True, "found")
    advice = "give `launch` the parameter `project`"
    yield Check("project", bool(project), project or "none in the credentials", advice)
