"""From text to batches, in the order in which a document travels.

- What a data set is: `spec`, and with what came out `manifest`.
- Making: `packing`, `pair_packing` (documents to sequences), `masking`, `records` (a record's
  bytes), `blocks`, `shards`, `workers`, `work` (what is unfinished, and whose), `build` (all).
- Records made elsewhere: `adopt`.
- Checking: `verify` (files), `full_check` (records), `show` (for people).
- Reading: `order` (which record comes when), `pipeline` (batches).

`hashing` is the only source of randomness. NumPy and TensorFlow compute the same in `hashing`,
`masking`, `order`, `records` and in their twins of the same name with `_tf`.
"""
