"""Fixtures with runs of a tiny model, shared with the tests of commands."""

from tests.commands.conftest import inputs, runs

__all__ = ["inputs", "runs"]
