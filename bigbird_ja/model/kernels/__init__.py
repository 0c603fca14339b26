"""Computes attention by Pallas kernels on a TPU: imported only where a config asks for them."""
