"""Fixtures with a trained model and its evaluation."""

import pytest

from bigbird_ja.data import pipeline
from bigbird_ja.evaluation import masked_lm
from bigbird_ja.model.forward import Forward


@pytest.fixture(scope="package")
def forward(trained):
    return Forward(trained.config, trained.data, trained.params)


@pytest.fixture(scope="package")
def result(forward, small_run, manifest):
    return masked_lm.evaluate_model(forward, small_run.data_dir, manifest)


@pytest.fixture
def batch(small_run, manifest):
    """Return the first batch of held-out records."""
    size = masked_lm.choose_batch_size(256)
    batches = pipeline.read_eval_batches(manifest, small_run.data_dir, batch_size=size)
    return {name: value.copy() for name, value in next(batches.as_numpy_iterator()).items()}
