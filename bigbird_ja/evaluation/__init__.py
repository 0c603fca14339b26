"""Evaluate models on held-out records."""
