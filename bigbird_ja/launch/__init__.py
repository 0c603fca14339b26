"""Renting, watching and deleting TPUs; prices."""
