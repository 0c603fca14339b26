"""Of the small run: the model that is exported, and the data that it was trained on."""

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.evaluation import load_run


@pytest.fixture(scope="session")
def trained(small_run):
    return load_run(small_run.model_dir)


@pytest.fixture(scope="session")
def manifest(small_run):
    return manifest_lib.load(small_run.data_dir)
