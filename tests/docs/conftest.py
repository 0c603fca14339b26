"""Fixture for the tests of examples in docs/."""

import sys

import pytest


@pytest.fixture
def example(monkeypatch, capsys):
    """Return a function that runs an example in this process and returns its standard output."""

    def run(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        module.main()
        return capsys.readouterr().out

    return run
