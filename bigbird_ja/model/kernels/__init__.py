"""Attention as kernels for the TPU, in Pallas: imported only where a config asks for them."""
