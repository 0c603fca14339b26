"""Handles this process and those it starts: signals, streams, errors, statuses. Lowest of all."""
