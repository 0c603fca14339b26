"""Runs of a tiny model, as in the commands' tests."""

from tests.commands.conftest import inputs, runs

__all__ = ["inputs", "runs"]
