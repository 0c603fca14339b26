"""Signals, streams, errors and child processes of this process. The lowest layer."""
