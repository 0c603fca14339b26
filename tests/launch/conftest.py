"""Fixtures for the tests of `launch`."""

import pytest

from testkit.fakes.compute import FakeCompute
from tests.launch import support


@pytest.fixture
def fake_compute(tmp_path):
    with FakeCompute(f"{tmp_path}/vms") as fake:
        yield fake


@pytest.fixture
def tpus(fake_tpu):
    """Return a client of the fake Cloud TPU API."""
    return support.client(fake_tpu)
