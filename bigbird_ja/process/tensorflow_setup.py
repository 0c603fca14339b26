"""Environment variables that TensorFlow reads only while it is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping

# Variables of TensorFlow's gs:// client, which reads only training records; `bigbird_ja.storage`
# reads and writes other files. Values that the user has set are kept.
_GCS = {
    # Each open object uses one block as its buffer. The default of 64 MiB for each of 64 open
    # shards exceeds the memory of a TPU VM.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "4",
    # Without the cache, one request per shard is sent instead of two, as its size is not requested.
    # So a truncated reply is not detected by TensorFlow, but by `pipeline`, which counts records.
    "GCS_READ_CACHE_DISABLED": "1",
    # 8 retries with a backoff from 1 to 16 s last about 80 s. The default of 10 retries with up to
    # 32 s makes a TPU wait for 200 s.
    "GCS_RETRY_CONFIG_MAX_RETRIES": "8",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "16000000",
    # Seconds without data until a request is sent again (default 60).
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
    """Set all variables for a process that uses TensorFlow only for this package.

    Args:
        environ: environment, changed in place except for variables that the user has set.
    """
    configure_gcs(environ)
    # Without a GPU, C++ code logs "errors" at every start. Real errors raise exceptions.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("tensorflow_estimator") is None:
        # Importing Keras and matplotlib takes a third of TensorFlow's import time, and only
        # TPUEstimator requires them. TensorFlow imports no Keras if legacy Keras (tf_keras) is
        # requested, but not installed.
        environ.setdefault("TF_USE_LEGACY_KERAS", "1")
