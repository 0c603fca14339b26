"""The verbs, one module per command: its flags, and a call."""
