"""Signals, streams, log and child processes of this process, as the lowest layer."""
