"""From text to batches, in the order in which a document travels.

- What a data set is: `manifest`.
- Making: `packing`, `pair_packing` (documents to sequences), `masking`, `tfrecords` (the bytes of a
  record), `blocks`, `shards`, `work` (unfinished work, and whose it is), `build` (all).
- Checking: `verify` (files), `check` (records).
- Reading: `order` (which record comes when), `tfrecords` again, `pipeline` (batches).

`hashing` is the only source of randomness. NumPy and TensorFlow compute the same hashes, masks and
order.
"""
