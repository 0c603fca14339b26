"""Declare, read and compare what a run decides; imports `process` and `storage` alone."""
