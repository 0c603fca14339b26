import sys

import pytest

from bigbird_ja.evaluation import tensorboard


def test_tensorboard_reads_the_results_and_is_not_needed_to_write_them(
    result, tmp_path, monkeypatch
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # TensorFlow may be installed without TensorBoard.
    monkeypatch.setitem(sys.modules, "tensorboard.summary.v2", None)
    (tmp_path / "eval").mkdir()
    name, data = tensorboard.make_evaluation_file(4, result, 1.5e9)
    assert tensorboard.make_evaluation_file(4, result, 1.5e9) == (name, data)
    (tmp_path / name).write_bytes(data)
    events = EventAccumulator(str(tmp_path / "eval"))
    events.Reload()
    (scalar,) = events.Scalars("eval/masked_lm_loss")
    assert (scalar.step, scalar.wall_time) == (4, 1.5e9)
    assert scalar.value == pytest.approx(result["masked_lm_loss"])
