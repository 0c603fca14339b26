"""A pod: several processes, one per host, that train one run together under JAX's runtime.

`place` finds out which process this is, `meeting` brings them together and compares what they were
asked for, `pod` keeps them together (who is gone, at which step all save or stop), `runtime` joins
JAX's runtimes. Process 0 is the writer: it holds the lease on MODEL_DIR and writes its files.
"""
