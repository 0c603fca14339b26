from __future__ import annotations

import pytest

from bigbird_ja.data import beam_runner, build
from bigbird_ja.errors import BadInput
from tests.data import making

pytest.importorskip("apache_beam")


@pytest.mark.parametrize("changes", [{}, {"masking": "static", "dupe_factor": 3, "nsp": True}])
def test_beam_writes_the_same_bytes(tmp_path, sample_corpus, tokenizer_path, monkeypatch, changes):
    monkeypatch.setattr("bigbird_ja.data.blocks._BLOCK_CHARACTERS", 20_000)
    monkeypatch.setattr("bigbird_ja.data.blocks._CHARACTERS_PER_POSITION", 1)
    local, beam = str(tmp_path / "local"), str(tmp_path / "beam")
    build.make_data(making.request(sample_corpus, tokenizer_path, local, **changes))
    request = making.request(sample_corpus, tokenizer_path, beam, **changes)
    assert not beam_runner.make_data(request, ["--runner=DirectRunner"])[1]
    assert making.digests(local) == making.digests(beam)
    assert beam_runner.make_data(request, [])[1]  # finished already


def test_other_settings_are_refused(tmp_path, sample_corpus, tokenizer_path):
    output = str(tmp_path / "data")
    build.make_data(making.request(sample_corpus, tokenizer_path, output))
    request = making.request(sample_corpus, tokenizer_path, output, seed=3)
    with pytest.raises(BadInput, match="--seed"):
        beam_runner.make_data(request, [])
