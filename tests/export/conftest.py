"""Of the small run: the model that is exported, and the data that it was trained on."""

from __future__ import annotations

import pytest

from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.evaluation.trained_model import TrainedModel, load_run
from testkit.runs import SmallRun


@pytest.fixture(scope="session")
def trained(small_run: SmallRun) -> TrainedModel:
    return load_run(small_run.model_dir)


@pytest.fixture(scope="session")
def manifest(small_run: SmallRun) -> manifest_lib.Manifest:
    return manifest_lib.load(small_run.data_dir)
