"""The verbs: one module per command."""
