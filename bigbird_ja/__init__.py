"""Pretrain and continue long-sequence encoders (Japanese first) on preemptible Cloud TPUs.

Each command of `bigbird-ja` is also a function of this package. Its arguments are the flags. Its
result is a frozen dataclass with the keys of `--json`. Errors are in `bigbird_ja.errors`. Large
libraries are imported only when a function is used.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigbird_ja import errors as errors
    from bigbird_ja.data.inspect import check_data as check_data
    from bigbird_ja.data.make_data import make_data as make_data
    from bigbird_ja.demo.demo import demo as demo
    from bigbird_ja.doctor.doctor import doctor as doctor
    from bigbird_ja.evaluation.checkpoints import evaluate as evaluate
    from bigbird_ja.evaluation.fill_mask import fill_mask as fill_mask
    from bigbird_ja.export.export_run import export as export
    from bigbird_ja.huggingface.trim import trim as trim
    from bigbird_ja.launch.leftovers import down as down
    from bigbird_ja.launch.session import launch as launch
    from bigbird_ja.launch.status import status as status
    from bigbird_ja.launch.trainer_log import logs as logs
    from bigbird_ja.plan.run import plan as plan
    from bigbird_ja.preflight.run import preflight as preflight
    from bigbird_ja.report.page import report as report
    from bigbird_ja.settings.explain import config as config
    from bigbird_ja.settings.schema import Config as Config
    from bigbird_ja.text.articles import sample as sample
    from bigbird_ja.text.tokenizer_training import tokenize as tokenize
    from bigbird_ja.train.start import pretrain as pretrain

    __version__: str

# Module of each function, in the usual order of use.
FUNCTIONS = {
    "demo": "demo.demo",
    "sample": "text.articles",
    "tokenize": "text.tokenizer_training",
    "trim": "huggingface.trim",
    "make_data": "data.make_data",
    "check_data": "data.inspect",
    "config": "settings.explain",
    "pretrain": "train.start",
    "evaluate": "evaluation.checkpoints",
    "fill_mask": "evaluation.fill_mask",
    "plan": "plan.run",
    "preflight": "preflight.run",
    "report": "report.page",
    "export": "export.export_run",
    "launch": "launch.session",
    "status": "launch.status",
    "logs": "launch.trainer_log",
    "down": "launch.leftovers",
    "doctor": "doctor.doctor",
}
_OTHERS = {"Config": "settings.schema"}

__all__ = ["Config", "errors", *FUNCTIONS]


def __getattr__(name: str) -> Any:
    """Import a function, `Config` or `errors` when it is first used."""
    # Find the version only when it is used, since this runs git in a checkout.
    if name == "__version__":
        from bigbird_ja.version import find_version

        return find_version()
    if name == "errors":
        return importlib.import_module("bigbird_ja.errors")
    if module := FUNCTIONS.get(name) or _OTHERS.get(name):
        from bigbird_ja.process.tensorflow_setup import configure_gcs

        # Set the variables of TensorFlow's gs:// client before TensorFlow is imported.
        configure_gcs(os.environ)
        return getattr(importlib.import_module(f"bigbird_ja.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


class _Package(types.ModuleType):
    """Package in which the import of a subpackage hides no function with the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        # An import of bigbird_ja.report would hide the function `report`.
        if not (name in FUNCTIONS and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
