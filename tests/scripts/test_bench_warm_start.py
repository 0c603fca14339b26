"""A model of short sequences as the start of one of long sequences, by the commands themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import bench_warm_start


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_tenth_of_the_steps_from_a_short_model_beats_all_from_scratch(
    sample_corpus: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(bench_warm_start.TEXT, sample_corpus)
    status = bench_warm_start.main(
        [
            f"--work_dir={tmp_path}", "--vocab_size=1200", "--steps=100", "--short_steps=300",
            "--eval_batches=2",
        ]
    )  # fmt: skip
    losses = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 0, losses
    assert losses["warm start"] < losses["scratch"]
