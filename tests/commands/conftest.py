"""Fixtures of the commands' tests."""

from __future__ import annotations

import pytest

from testkit import killing


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a tiny config and a tiny data set to pretrain on; tests must not change them."""
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    return str(config), str(data)
