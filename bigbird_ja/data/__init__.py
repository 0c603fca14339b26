"""Build data sets from text and read them as batches.

- Describing: `manifest` (the spec of a data set, and the counts and checksums of its files).
- Building: `packing`, `pair_packing` (documents to sequences), `masking`, `tfrecords` (serialized
  records), `blocks`, `shards`, `build_dir` (unfinished work), `build` (all steps), `ray_runner`.
- Checking: `check` (files, or every record), `inspect` (reports for users).
- Reading: `order` (order of the records), `parsing` (records), `pipeline` (batches).
- Used by all: `hashing` (randomness), `ops` (array operations in NumPy and in TensorFlow).
"""
