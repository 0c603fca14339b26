"""A data set made by `make-data`, once."""

import pytest

from bigbird_ja.data import build
from tests.data import making


@pytest.fixture(scope="package")
def made(sample_corpus, tokenizer_path, tmp_path_factory):
    """Make a dynamic data set of the sample corpus, from several blocks."""
    output = str(tmp_path_factory.mktemp("made") / "data")
    with making.small_blocks():
        manifest, was_there = build.make_data(making.request(sample_corpus, tokenizer_path, output))
    assert not was_there
    return manifest, output
