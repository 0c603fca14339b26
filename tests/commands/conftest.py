"""Fixtures of the commands' tests."""

import pytest

from testkit import killing
from tests.commands.pretraining import Runs


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """Return paths of a tiny config and a tiny data set, which tests must not change."""
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    return str(config), str(data)


@pytest.fixture(scope="module")
def engine():
    """Return the name of the engine that the fixture `runs` uses."""
    return "pjrt"


@pytest.fixture(scope="module")
def runs(engine, zygote, inputs, once):
    """Return a `Runs` object, which starts runs with the engine and contains a finished run."""
    return Runs(zygote, inputs, engine, once)
