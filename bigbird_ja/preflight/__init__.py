"""Compilation of the train step for TPUs, offline: memory, cycles, MFU, the costliest ops."""
