"""Check what this machine has and lacks for training, and what to do about it.

  bigbird-ja doctor
  bigbird-ja doctor --json

Checks packages, engines and their devices, memory, disk and Google credentials. Exits with 0 if
this machine can train, else with 2; requirements of `launch` do not count. Writes nothing. Takes
ten seconds, mostly to import TensorFlow and jax.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bigbird_ja.cli.command_flags import Args, Flags

if TYPE_CHECKING:
    from bigbird_ja.doctor.doctor import DoctorResult

EXAMPLE = "bigbird-ja doctor"


def define_flags(flags: Flags) -> None:
    """Define no flags: the command has only the common ones."""


def run(args: Args) -> DoctorResult:
    """Check this machine, and print each finding."""
    from bigbird_ja.doctor import doctor

    width = min(79, shutil.get_terminal_size().columns)
    result = doctor.doctor(on_check=lambda check: print(doctor.describe(check, width), flush=True))
    able = next(check for check in result.checks if check.is_engine and check.is_well)
    print(f"this machine can train: {able.observed}")
    return result
