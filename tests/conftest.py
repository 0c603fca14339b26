"""Fixtures that several rooms share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.fakes.gcs_process import FakeGcs


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[FakeGcs]:
    """One fake bucket server for the whole test run; see `bucket` for a clean place on it."""
    with FakeGcs() as fake:
        yield fake


@pytest.fixture
def bucket(fake_gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """gs:// path of an empty bucket that this process and its children (by `fake_gcs.environ()`)
    can use; faults and log are cleared at both ends."""
    for name in (
        "STORAGE_EMULATOR_HOST",
        "BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS",
        "BIGBIRD_JA_STORAGE_BACKOFF_SECONDS",
    ):
        monkeypatch.setenv(name, fake_gcs.env[name])
    name = f"b-{uuid.uuid4().hex[:12]}"
    fake_gcs.create_bucket(name)
    fake_gcs.clear()
    fake_gcs.log(clear=True)
    yield f"gs://{name}"
    fake_gcs.clear()
