"""The real TPU compiler, offline: fits or not, cycles, MFU, the costliest ops."""
