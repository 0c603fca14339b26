"""`scripts.probe` finds repeated names, masks the right mentions, and runs completely."""

import json

import numpy as np
import pytest

from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.text import articles
from scripts import probe
from testkit import command_line


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path):
    return read_tokenizer(tokenizer_path)


@pytest.fixture(scope="module")
def records(tokenizer):
    texts = articles.generate(12, seed=5, mean_length=4000, facts=6.0)
    return list(probe.sequences(texts, tokenizer, 2048))


def test_cases_hide_the_mention_and_all_later_ones_also_in_a_window(records, tokenizer):
    cases = probe.find_cases(records, tokenizer)
    special = tokenizer.special
    assert len(cases) > 20 and max(case.distance for case in cases) > 1000
    for case in cases:
        assert (case.input_ids[case.positions] == special.mask).all()
        # The previous mention is not masked, and is `distance` tokens before the masked mention.
        earlier = case.positions - case.distance
        np.testing.assert_array_equal(case.input_ids[earlier], case.ids)
        filled = case.input_ids.copy()
        filled[case.positions] = case.ids
        (whole,) = [r for r in records if ((r == filled) | (filled == special.mask)).all()]
        changed = np.flatnonzero(case.input_ids != whole)
        assert (changed >= case.positions[0]).all()
        after = np.append(case.input_ids[case.positions[-1] + 1 :], [-1] * len(case.ids))
        later = np.lib.stride_tricks.sliding_window_view(after, len(case.ids))
        assert not (later == case.ids).all(axis=1).any()
        # A case that is limited to 512 tokens contains the masked mention between [CLS] and [SEP],
        # and contains no previous mention that is more than 512 tokens away.
        limited = probe.limit(case, special)
        assert limited.input_ids.shape == (512,)
        assert (limited.input_ids[limited.positions] == special.mask).all()
        used = limited.input_ids[limited.input_ids != special.pad]
        assert used[0] == special.cls and used[-1] == special.sep
        assert case.distance <= 512 or limited.positions[0] <= case.distance


def test_the_program(small_run, tmp_path, sample_corpus):
    words = [f"--model_dir={small_run.model_dir}", f"--input={sample_corpus}", "--cases=40"]
    words.append(f"--plot={tmp_path}/p.png")
    ended = command_line.run_module("scripts.probe", *words)
    assert ended.status == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout.splitlines()[-1])["cases"] == 40
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
