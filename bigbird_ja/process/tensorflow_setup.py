"""Environment variables that TensorFlow reads only while it is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping

# Variables of TensorFlow's gs:// client. The client reads only training records, since
# `bigbird_ja.storage` reads and writes all other files.
_GCS = {
    # Each open object has a buffer of one block. With the default block of 64 MiB, 64 open shards
    # would need 4 GiB of memory.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "4",
    # Without the cache, TensorFlow does not request a shard's size, so it sends one request per
    # shard instead of two. Without the size, it does not detect a truncated reply. `pipeline`
    # detects it by counting records.
    "GCS_READ_CACHE_DISABLED": "1",
    # 8 retries with a backoff from 1 to 16 s last about 80 s. With the default, which is 10 retries
    # with a backoff of up to 32 s, a TPU waits for 200 s.
    "GCS_RETRY_CONFIG_MAX_RETRIES": "8",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "16000000",
    # Seconds without data until a request is sent again (default 60).
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
}


def configure_gcs(environ: MutableMapping[str, str]) -> None:
    """Set the environment variables of TensorFlow's gs:// client.

    Args:
        environ: environment, changed in place except for variables that the user has set.
    """
    for name, value in _GCS.items():
        environ.setdefault(name, value)


def prepare_tensorflow(environ: MutableMapping[str, str]) -> None:
    """Set the environment variables for a process that uses TensorFlow only for this package.

    Args:
        environ: environment, changed in place except for variables that the user has set.
    """
    configure_gcs(environ)
    # Hide the errors that TensorFlow's C++ code logs at every start without a GPU. Real errors
    # raise exceptions.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("tensorflow_estimator") is None:
        # Keep TensorFlow from importing Keras and matplotlib, which takes a third of its import
        # time. Only TPUEstimator requires them. TensorFlow imports no Keras if legacy Keras
        # (tf_keras) is requested, but not installed.
        environ.setdefault("TF_USE_LEGACY_KERAS", "1")
