"""Each workaround in `compat` is still needed. If a test fails, remove the tested workaround."""

import importlib.util

import pytest
import tomllib

from bigbird_ja import compat
from testkit import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_jax_has_no_setting_for_the_version_of_mosaic():
    pytest.importorskip("jax", minversion="0.7")
    from jax._src import tpu_custom_call

    from bigbird_ja.model.kernels import kernel_attention

    with compat.use_mosaic_format(kernel_attention._FORMAT):
        assert tpu_custom_call.get_ir_version(None) == kernel_attention._FORMAT
    assert tpu_custom_call._FWD_COMPAT_VERSION > kernel_attention._FORMAT, "its own does by now"


def test_kaggle_has_the_jax_that_asks_for_layouts():
    assert "\njax==0.7.2 " in (ROOT / "requirements/kaggle.lock").read_text()


def test_tensorflow_2_15_and_the_last_compatible_jax_are_supported():
    extra = PYPROJECT["optional-dependencies"]["estimator"]
    assert "jax==0.4.34" in extra and "tensorflow>=2.15,<2.16" in extra


@pytest.mark.estimator
def test_tpuestimator_has_the_names_that_are_replaced():
    pytest.importorskip("tensorflow_estimator")
    from tensorflow.python.training import monitored_session
    from tensorflow_estimator.python.estimator.tpu import error_handling, tpu_estimator

    assert hasattr(monitored_session, "_PREEMPTION_ERRORS")
    assert hasattr(error_handling, "_IGNORED_ERRORS")
    assert hasattr(tpu_estimator, "InstallSignalHandlerHook")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_the_store_of_jax_has_no_public_name():
    import jax

    public = [name for name in dir(jax.distributed) if not name.startswith("_")]
    assert not [name for name in public if "client" in name or "store" in name or "key" in name]
