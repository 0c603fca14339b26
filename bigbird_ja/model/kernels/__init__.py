"""Attention by Pallas kernels on TPUs, if `choose` selects them."""
