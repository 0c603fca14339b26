"""Held-out loss, the long-context probe, filling masks."""
