"""Make data sets of text and read them as batches, in the order in which a document travels.

- Describing: `manifest` (what is to be made, and what was made).
- Making: `packing`, `pair_packing` (documents to sequences), `masking`, `tfrecords` (the bytes of a
  record), `blocks`, `shards`, `work` (unfinished work, and whose it is), `build` (all).
- Checking: `verify` (files), `check` (records; tables for people).
- Reading: `order` (which record comes when), `tfrecords` again, `pipeline` (batches).

`hashing` is the only source of randomness. NumPy and TensorFlow compute the same hashes,
masks and order.
"""

from collections.abc import MutableMapping

# Name -> value, and why. A value that the user has set stays.
_TENSORFLOW: dict[str, str] = {
    # The C++ side logs "errors" on every start where there is no GPU; a real one raises anyway.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Each open object takes one block of buffer; the default of 64 MiB per interleaved shard is
    # memory that a TPU VM with 64 open shards does not have.
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "4",
    # Without the cache an object is read without asking for its size first: one request for a shard
    # and not two. A complete but short reply then ends a shard early; `pipeline` counts records.
    "GCS_READ_CACHE_DISABLED": "1",
    # Passing faults are ridden out: 1 s doubled up to 16 s, 8 times, is about 80 s in all; the
    # default's 10 tries up to 32 s keep a TPU waiting for 200 s per call, and then again.
    "GCS_RETRY_CONFIG_MAX_RETRIES": "8",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "16000000",
    # A silent connection is dropped after this, and the request sent again (default 60).
    "GCS_REQUEST_IDLE_TIMEOUT_SECS": "20",
}


def prepare_tensorflow(environ: MutableMapping[str, str]) -> None:
    """Sets what TensorFlow's gs:// client and its logging read while TensorFlow is imported.

    Set afterwards these variables do nothing. TensorFlow reads training records from gs:// and
    nothing else; everything durable goes through `bigbird_ja.storage`.

    Args:
        environ: changed in place; what the user has set stays.
    """
    for name, value in _TENSORFLOW.items():
        environ.setdefault(name, value)
