"""Parses what a person types: commands, flags, help. Nothing below imports it."""
