"""Modules that the fork server of `testkit.zygote` imports before it forks a trainer."""

import importlib.util
import os

from bigbird_ja.process.tensorflow_setup import prepare_tensorflow

prepare_tensorflow(os.environ)

import tensorflow  # noqa: E402, F401

from bigbird_ja.data import check, pipeline  # noqa: E402, F401
from bigbird_ja.train import progress, train  # noqa: E402, F401

if importlib.util.find_spec("tensorflow_estimator") is not None:
    import tensorflow_estimator.python.estimator.tpu.tpu_estimator  # noqa: F401

    from bigbird_ja.train.engines import estimator  # noqa: F401
if importlib.util.find_spec("jax") is not None:
    from bigbird_ja.train.engines import pjrt  # noqa: F401
