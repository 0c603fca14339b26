"""Attention by Pallas kernels on TPUs."""
