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
    """Return the engine of `runs`."""
    return "pjrt"


@pytest.fixture(scope="module")
def runs(engine, zygote, inputs, once):
    """Return runs under an engine, of which one is finished."""
    return Runs(zygote, inputs, engine, once)
