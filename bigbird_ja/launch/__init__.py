"""Rent, watch and delete TPUs: supervisor, services, and the files of a launched run."""
