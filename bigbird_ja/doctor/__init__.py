"""Checks of this machine for training and for renting TPUs."""
