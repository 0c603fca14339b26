"""Environment variables that TensorFlow reads while it is imported, and its notices."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import MutableMapping
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType

# Environment variables of TensorFlow. A value that the user has set stays.
_TENSORFLOW: dict[str, str] = {
    # The C++ side logs "errors" on every start without a GPU; a real one raises anyway.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Each open object takes one block of buffer; the default of 64 MiB per interleaved shard is
    # memory that a TPU VM with 64 open shards does not have.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "4",
    # Without the cache an object is read without a request for its size: one request per shard, not
    # two. A complete but short reply then ends a shard early; `pipeline` counts records.
    "GCS_READ_CACHE_DISABLED": "1",
    # Transient faults are retried with backoff: 1 s doubled up to 16 s, 8 times, is about 80 s; the
    # default's 10 retries up to 32 s keep a TPU waiting for 200 s per call.
    "GCS_RETRY_CONFIG_MAX_RETRIES": "8",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "16000000",
    # Seconds until a silent connection is dropped and the request sent again (default 60).
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
}


def prepare_tensorflow(environ: MutableMapping[str, str]) -> None:
    """Set the variables that TensorFlow, its gs:// client and its logging read at import.

    Set later, they have no effect. TensorFlow reads only training records from gs://; everything
    durable goes through `bigbird_ja.storage`.

    Args:
        environ: environment, changed in place; variables that the user has set stay.
    """
    for name, value in _TENSORFLOW.items():
        environ.setdefault(name, value)
    if importlib.util.find_spec("tensorflow_estimator") is None:
        # Only TPUEstimator needs Keras, which takes a third of the import with matplotlib. If the
        # legacy one is requested and not installed (tf_keras), TensorFlow imports none.
        environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    ExtensionFileLoader.create_module = _create_module  # type: ignore[method-assign,assignment]


_load_library = ExtensionFileLoader.create_module


def _create_module(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
    """Load a library of TensorFlow without the notices that it prints before it can be configured.

    From 2.20 on, some of its libraries print at load that oneDNN is used, whatever
    TF_CPP_MIN_LOG_LEVEL is: four lines for every command. Loading holds Python's lock, so no thread
    of ours writes to standard error meanwhile.
    """
    if not spec.name.startswith("tensorflow."):
        return _load_library(loader, spec)
    try:
        kept, printed = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 (below)
    except OSError:  # standard error is closed, or there is no room: the notices do no harm
        return _load_library(loader, spec)
    with printed:
        os.dup2(printed.fileno(), 2)
        try:
            return _load_library(loader, spec)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            printed.seek(0)
            for line in printed:
                if not line.startswith((b"I0000 ", b"WARNING: All log messages before absl::")):
                    os.write(2, line)
