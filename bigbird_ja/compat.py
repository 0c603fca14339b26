"""Workarounds that use private names of libraries, each with the version that needs it.

`tests/test_compat.py` fails once one is no longer needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def mosaic_format(version: int) -> Iterator[None]:
    """Let TPU kernels that are lowered inside use a version of Mosaic.

    Needed for: every jax so far (0.10.2), which has no setting for it. A jax without the replaced
    function writes its own version.
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
    """Keep jax from asking the client for its default layouts after a compile.

    Needed for: jax 0.7.2 (Kaggle), with which a client without devices crashes at that call. The
    layouts are needed only to run a program, which `preflight` never does.
    """
    from jax._src.interpreters import pxla

    if hasattr(pxla, "is_default_layout"):
        pxla.is_default_layout = lambda layout, sharding, aval: True


def shard_map(function: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """Call `jax.shard_map` by its name and arguments in the installed jax.

    Needed for: jax 0.4.34, the last one next to TensorFlow 2.15, with which the engines are
        compared.
    """
    import jax

    specs = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, **specs, check_vma=False)
    from jax.experimental.shard_map import shard_map as experimental

    return experimental(function, **specs, check_rep=False)


def hlo_to_stablehlo(hlo: bytes) -> Any:
    """Convert a serialized HLO module to the text or bytes of a StableHLO module.

    Needed for: jax 0.4.34; see `shard_map`.
    """
    try:
        from jax.extend.mlir import hlo_to_stablehlo as public  # Since jax 0.7.1.
    except ImportError:
        from jax._src.lib import xla_client, xla_extension

        convert = xla_extension.mlir.xla_computation_to_mlir_module
        return convert(xla_client.XlaComputation(hlo))
    return public(hlo)


def coordination_client() -> Any:
    """Return the client of JAX's coordination service, once `jax.distributed` is initialized.

    Needed for: every jax so far (0.10.2), which has no public name for its key-value store.
    """
    from jax._src.distributed import global_state

    return global_state.client


def leave_coordination_service() -> None:
    """Keep JAX from waiting for other processes when this one exits.

    Needed for: every jax so far (0.10.2); the destructors of client and service wait, too.
    """
    if "jax" not in sys.modules:
        return
    from jax._src.distributed import global_state

    kept = (global_state.client, global_state.service)
    global_state.client = global_state.service = None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def tame_estimator(signal_hook: type) -> None:
    """Keep TPUEstimator from handling signals, and from building sessions forever.

    Needed for: TensorFlow 2.15, the last with TPUEstimator.

    Args:
        signal_hook: hook in place of its InstallSignalHandlerHook, which lets Ctrl-C kill the
            process and must run in the main thread.
    """
    from tensorflow.python.training import monitored_session
    from tensorflow_estimator.python.estimator.tpu import error_handling, tpu_estimator

    tpu_estimator.InstallSignalHandlerHook = signal_hook
    monitored_session._PREEMPTION_ERRORS = error_handling._IGNORED_ERRORS = ()
