"""Fixtures of the tests of renting: the fake services, as `launch` finds them."""

from dataclasses import replace

import pytest

from bigbird_ja.accelerators.prices import load_prices
from bigbird_ja.launch import prepare
from testkit.fakes.compute import FakeCompute
from tests.launch import support

TABLE = load_prices()
FLAGS = {"service": "auto", "pricing": "spot", "queued": False, "zones": [], "max_hours": 9.0}


@pytest.fixture
def fake_compute(tmp_path):
    with FakeCompute(f"{tmp_path}/vms") as fake:
        yield fake


@pytest.fixture
def serve(monkeypatch):
    """`serve(fake, ...)`: this process finds these services."""

    def serve(*fakes):
        for fake in fakes:
            for name, value in support.environment(fake).items():
                monkeypatch.setenv(name, value)

    return serve


@pytest.fixture
def settle(serve, tmp_path):
    """`settle(machine, fakes, **flags)`: the record, the lines, and the services that remain."""

    def settle(kind, fakes, **flags):
        serve(*fakes)
        flags = {**support.FLAGS, "accelerator_type": kind, **flags}
        run = support.vm_of("run-1", "id-1", kind, pricing=flags["pricing"])
        offered = prepare.offered(replace(run, bucket=str(tmp_path)), flags, support.TABLE)
        return *next(offered), offered

    return settle


@pytest.fixture
def tpus(fake_tpu):
    """Our client of the Cloud TPU API."""
    return support.client(fake_tpu)
