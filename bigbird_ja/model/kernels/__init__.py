"""Attention by Pallas kernels on TPUs; `choose` decides if they are used."""
