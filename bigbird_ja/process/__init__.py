"""Signals, streams, log and child processes: the lowest layer of the package."""
