"""Computes the time and money that a run takes, before anything is rented."""
