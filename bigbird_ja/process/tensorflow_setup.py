"""Environment variables that TensorFlow reads only while it is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping

# Variables of TensorFlow's gs:// client, which reads training records and nothing else: everything
# durable goes through `bigbird_ja.storage`. A value that the user has set stays.
_GCS = {
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


def configure_gcs(environ: MutableMapping[str, str]) -> None:
    """Set the variables of TensorFlow's gs:// client.

    Args:
        environ: environment, changed in place except for variables that the user has set.
    """
    for name, value in _GCS.items():
        environ.setdefault(name, value)


def prepare_tensorflow(environ: MutableMapping[str, str]) -> None:
    """Set all variables for a process of our own, which has no other use for TensorFlow.

    Args:
        environ: environment, changed in place except for variables that the user has set.
    """
    configure_gcs(environ)
    # The C++ side logs "errors" on every start without a GPU; a real one raises anyway.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("tensorflow_estimator") is None:
        # Only TPUEstimator needs Keras, which takes a third of the import with matplotlib. If the
        # legacy one is requested and not installed (tf_keras), TensorFlow imports none.
        environ.setdefault("TF_USE_LEGACY_KERAS", "1")
