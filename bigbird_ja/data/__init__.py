"""Make data sets of text and read them as batches, in the order in which a document travels.

- Describing: `manifest` (what is to be made, and what was made).
- Making: `packing`, `pair_packing` (documents to sequences), `masking`, `tfrecords` (the bytes of a
  record), `blocks`, `shards`, `work` (unfinished work and its owner), `build` (all), `ray_runner`.
- Checking: `check` (files, or every record).
- Reading: `order` (which record comes when), `parsing` (records), `pipeline` (batches).
- Used by all: `hashing` (randomness), `ops` (array operations in NumPy and in TensorFlow).
"""
