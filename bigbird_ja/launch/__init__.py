"""Renting of TPUs: supervisor, services, and the files of a launched run."""
