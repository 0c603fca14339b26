"""Evaluates models: held-out loss, filling masks."""
