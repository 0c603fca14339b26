"""Build data sets from text and read them as batches.

- Describing: `manifest` (the request and the result).
- Building: `packing`, `pair_packing` (documents to sequences), `masking`, `tfrecords` (the bytes of
  a record), `blocks`, `shards`, `work` (unfinished work and its owner), `build` (all),
  `ray_runner`.
- Checking: `check` (files, or every record), `inspect` (for people).
- Reading: `order` (which record comes when), `parsing` (records), `pipeline` (batches).
- Used by all: `hashing` (randomness), `ops` (array operations in NumPy and in TensorFlow).
"""
