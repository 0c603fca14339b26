"""Two runs of two lengths: short sequences, then `--init_from` on long ones."""

import numpy as np
import pytest

from bigbird_ja.run.model import parameters_of, read_variables
from testkit import killing, synthetic

SHORT, WHOLE, STEPS = 64, 128, 2
POSITIONS = "bert/embeddings/position_embeddings"


@pytest.mark.parametrize("architecture", ["bigbird", "modernbert"])
def test_a_run_goes_on_at_another_length(zygote, tmp_path, monkeypatch, architecture):
    """With a BigBird's positions repeated end to end; a ModernBERT has none to lengthen."""
    pytest.importorskip("jax")
    config, short = killing.write_inputs(tmp_path / "short", SHORT)
    synthetic.write(tmp_path / "whole", (40, 40), seq_length=WHOLE)
    sets = [f"--set=model.architecture={architecture}", "--set=training.log_every_steps=1"]
    if architecture == "modernbert":
        text = config.read_text().replace("  block_size: 16\n", "")
        config.write_text(text.replace("  num_random_blocks: 1\n", ""))
        sets.append("--set=model.local_attention=32")
    here = ["pretrain", "--json", f"--config={config}", f"--num_train_steps={STEPS}", *sets]
    first, second = tmp_path / "first", tmp_path / "second"
    ended = zygote.run(*here, f"--data_dir={short}", f"--model_dir={first}")
    assert ended.status == 0, ended.err
    longer = [f"--data_dir={tmp_path / 'whole'}", f"--model_dir={second}", f"--init_from={first}"]
    ended = zygote.run(*here, *longer, "--set=training.learning_rate=1e-12")
    assert ended.status == 0 and f"a run of ours, step {STEPS}" in ended.err, ended.err

    before, after = (
        parameters_of(read_variables(str(model / f"model.ckpt-{STEPS}")))
        for model in (first, second)
    )
    if architecture == "bigbird":
        assert f"{SHORT} positions repeated" in ended.err
        before[POSITIONS] = np.tile(before[POSITIONS], (WHOLE // SHORT, 1))
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, atol=1e-6, err_msg=name)
