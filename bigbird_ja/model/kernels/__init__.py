"""Attention by Pallas kernels on TPUs; `choose` decides where they are used."""
