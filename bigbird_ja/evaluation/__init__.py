"""Evaluation of models on held-out records."""
