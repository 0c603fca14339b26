"""Fixture with a data set that `make-data` builds once."""

import pytest

from bigbird_ja.data import build
from tests.data import making


@pytest.fixture(scope="package")
def made(sample_corpus, tokenizer_path, tmp_path_factory):
    """Build a data set with dynamic masks from the sample corpus, in several blocks.

    Returns:
        The manifest and the folder of the data set.
    """
    output = str(tmp_path_factory.mktemp("made") / "data")
    with making.small_blocks():
        manifest, was_there = build.make_data(making.request(sample_corpus, tokenizer_path, output))
    assert not was_there
    return manifest, output
