"""Signals, streams, log and child processes of this process. The lowest layer."""
