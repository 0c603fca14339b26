"""Fixtures of the tests of renting: the fake services, as `launch` finds them."""

from dataclasses import replace

import pytest

from bigbird_ja.launch import prepare
from testkit.fakes.compute import FakeCompute
from tests.launch import support


@pytest.fixture
def fake_compute(tmp_path):
    with FakeCompute(f"{tmp_path}/vms") as fake:
        yield fake


@pytest.fixture
def serve(monkeypatch):
    """Return a function that makes this process use the given fake services."""

    def serve(*fakes):
        for fake in fakes:
            for name, value in support.environment(fake).items():
                monkeypatch.setenv(name, value)

    return serve


@pytest.fixture
def settle(serve, tmp_path):
    """Return a function that takes a machine type, fake services and flags of `launch`.

    It returns the record and the notes for the first service that offers the machine, and the
    iterator over the services that come next.
    """

    def settle(kind, fakes, **flags):
        serve(*fakes)
        flags = {**support.FLAGS, "accelerator_type": kind, **flags}
        run = support.vm_of("run-1", "id-1", kind, pricing=flags["pricing"])
        offered = prepare.offered(replace(run, bucket=str(tmp_path)), flags, support.TABLE)
        run, notes, warnings = next(offered)
        return run, [*notes, *(f"warning: {text}" for text in warnings)], offered

    return settle


@pytest.fixture
def tpus(fake_tpu):
    """Return a client of the fake Cloud TPU API."""
    return support.client(fake_tpu)
