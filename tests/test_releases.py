"""Later versions can read and continue the files of released versions.

tests/fixtures/format-0.2.0.tar.xz contains

- corpus.jsonl, and the tokenizer ja.* by `tokenize --vocab_size 51`;
- data/ by `make-data --seq_length 64 --max_predictions_per_seq 10 --num_shards 2 --eval_fraction
  0.1`;
- model/ by four steps of `pretrain` with the settings in model/config.yaml;
- whole-metrics.jsonl, the metrics of a copy of model/ after `pretrain --num_train_steps 8`.

The archive contains ja.model only once, so the fixture `made` copies it into data/ and model/.
Files of unreleased versions are refused (`storage.decode`).
"""

import json
import shutil
import tarfile

import pytest

from testkit import ROOT


@pytest.fixture(params=["0.2.0"])
def made(request, tmp_path):
    """Unpack the files that a released version wrote, and return their folder."""
    with tarfile.open(ROOT / f"tests/fixtures/format-{request.param}.tar.xz") as archive:
        # Python before 3.11.4, such as that of Debian, has no extraction filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    for folder in ("data", "model"):
        shutil.copy(tmp_path / "ja.model", tmp_path / folder / "tokenizer.model")
    return tmp_path


@pytest.mark.both
def test_a_run_continues_with_equal_losses(made, zygote):
    model = made / "model"
    ended = zygote.run(
        "pretrain", f"--data_dir={made}/data", f"--model_dir={model}", "--num_train_steps=8"
    )
    assert ended.status == 0, ended.err
    lines = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    whole = [json.loads(line) for line in (made / "whole-metrics.jsonl").read_text().splitlines()]
    assert lines[:4] == whole[:4]
    for line, expected in zip(lines, whole, strict=True):
        for key in ("step", "loss", "masked_lm_accuracy", "learning_rate", "grad_norm"):
            assert line[key] == pytest.approx(expected[key], rel=1e-4), (key, line)


def test_a_data_set_is_whole_and_finished(made, zygote):
    checked = zygote.run("check-data", f"--data_dir={made}/data", "--json")
    assert checked.status == 0 and checked.result["problems"] == []
    before = (made / "data/manifest.json").read_bytes()
    flags = [f"--input={made}/corpus.jsonl", f"--tokenizer={made}/ja.model", "--seq_length=64"]
    flags += ["--max_predictions_per_seq=10", "--num_shards=2", "--eval_fraction=0.1"]
    again = zygote.run("make-data", *flags, f"--output_dir={made}/data")
    assert again.status == 0, again.err
    assert (made / "data/manifest.json").read_bytes() == before
