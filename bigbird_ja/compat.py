"""Workarounds that use private names of libraries, with the versions that require them.

`tests/test_compat.py` fails when a workaround is no longer required.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def use_mosaic_format(version: int) -> Iterator[None]:
    """Context manager: lower TPU kernels in a given version of Mosaic's format.

    Required by all releases of jax up to 0.10.2, which have no setting for the version. A
    release without the function that is replaced here lowers kernels in its default version.
    """
    from jax._src import tpu_custom_call

    name = "get_ir_version"
    original = getattr(tpu_custom_call, name, None)
    if original is None:
        yield
        return
    setattr(tpu_custom_call, name, lambda *_: version)
    try:
        yield
    finally:
        setattr(tpu_custom_call, name, original)


def skip_default_layouts() -> None:
    """Prevent jax from asking the client for its default layouts after a compilation.

    Required by jax 0.7.2 (Kaggle), in which this request crashes a client without devices. Only a
    program that is run needs the layouts, and `preflight` runs none.
    """
    from jax._src.interpreters import pxla

    if hasattr(pxla, "is_default_layout"):
        pxla.is_default_layout = lambda layout, sharding, aval: True


def shard_map(function: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """Call `jax.shard_map` by its name and arguments in the installed jax.

    Required by jax 0.4.34, the last version that can be installed with TensorFlow 2.15. Tests that
    compare the engines need both packages.
    """
    import jax

    specs = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, **specs, check_vma=False)
    from jax.experimental.shard_map import shard_map as experimental

    return experimental(function, **specs, check_rep=False)


def hlo_to_stablehlo(hlo: bytes) -> Any:
    """Convert a serialized HLO module to the text or bytes of a StableHLO module.

    Required by jax 0.4.34, the last version that can be installed with TensorFlow 2.15.
    """
    try:
        from jax.extend.mlir import hlo_to_stablehlo as public  # Since jax 0.7.1.
    except ImportError:
        from jax._src.lib import xla_client, xla_extension

        convert = xla_extension.mlir.xla_computation_to_mlir_module
        return convert(xla_client.XlaComputation(hlo))
    return public(hlo)


def get_coordination_client() -> Any:
    """Return the client of JAX's coordination service, once `jax.distributed` is initialized.

    Required by all releases of jax up to 0.10.2, in which the service's key-value store has no
    public name.
    """
    from jax._src.distributed import global_state

    return global_state.client


def leave_coordination_service() -> None:
    """Prevent JAX from waiting for other processes when this one exits.

    Required by all releases of jax up to 0.10.2. The destructors of the client and the service
    would also wait, so an extra reference prevents their destruction.
    """
    if "jax" not in sys.modules:
        return
    from jax._src.distributed import global_state

    kept = (global_state.client, global_state.service)
    global_state.client = global_state.service = None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def patch_estimator(signal_hook: type) -> None:
    """Prevent TPUEstimator from handling signals, and from retrying sessions forever.

    Required by TensorFlow 2.15, the last version with TPUEstimator.

    Args:
        signal_hook: replacement of InstallSignalHandlerHook. The original lets Ctrl-C kill the
            process, and must run in the main thread.
    """
    from tensorflow.python.training import monitored_session
    from tensorflow_estimator.python.estimator.tpu import error_handling, tpu_estimator

    tpu_estimator.InstallSignalHandlerHook = signal_hook
    monitored_session._PREEMPTION_ERRORS = error_handling._IGNORED_ERRORS = ()
