"""Implements the verbs: one module per command."""
