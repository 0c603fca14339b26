"""Fixtures with runs of a tiny model, which the tests of commands use, too."""

from tests.commands.conftest import inputs, runs

__all__ = ["inputs", "runs"]
