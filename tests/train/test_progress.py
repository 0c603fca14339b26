"""The progress line of training and its tokens per second, with a simulated clock."""

import pytest

from bigbird_ja.train.progress import TrainProgress


def make(peak=None, start=0, before=0.0):
    now = [100.0]
    speed = (1000, 4000.0, 1e12, peak)
    return TrainProgress(*speed, start, before, lambda: now[0]), now


def measured(progress, step):
    """Report that `step` has finished, and return the measured tokens per second."""
    progress.note_finished(step)
    return progress.measure()


def metrics(step, rate):
    return {"step": step, "loss": 2.5, "masked_lm_accuracy": 0.25, "tokens_per_second": rate}


def test_rate_and_eta_follow_the_clock():
    progress, now = make()
    now[0] += 10.0
    assert measured(progress, 20) == pytest.approx(8000.0)
    assert progress.estimate_eta_seconds(20) == pytest.approx(490.0)
    now[0] += 5.0
    progress.leave_out()  # Exclude these 5 seconds, in which an evaluation ran, from the rate.
    now[0] += 10.0
    assert measured(progress, 40) == pytest.approx(8000.0)


def test_rate_is_measured_over_a_second_at_least():
    """Measure steps of half a second. Step 3 is reported late, immediately before step 4."""
    progress, now = make()
    now[0] += 20.0  # The first step takes long, since it includes the start of the input pipeline.
    assert measured(progress, 1) == pytest.approx(200.0)
    for seconds, step, rate in [(0.5, 2, 8e3), (1.4, 3, 4000 / 1.4), (1e-4, 4, 4000 / 0.7)]:
        now[0] += seconds
        got = measured(progress, step)
        assert 200 <= got < 2 * rate, (step, got)
    for step in range(5, 60):
        now[0] += 0.5
        last = measured(progress, step)
    assert last == pytest.approx(8000.0)
    assert progress.estimate_eta_seconds(900) == pytest.approx(50.0, rel=0.05)


def test_line_begins_with_step_and_loss(caplog):
    """Print step and loss first, since a terminal may cut off the end of the line."""
    progress, now = make(peak=50e12)
    now[0] += 10.0
    progress.show(metrics(20, measured(progress, 20)))
    assert caplog.messages == [
        "step 20 of 1,000  loss 2.5000  2.0%  ETA 8 min 10 s  8,000 tokens/s  accuracy 25.0%"
        "  MFU 4.0%  trained 10 s"
    ]


def test_train_time_accumulates_over_restarts():
    progress, now = make(start=500, before=3600.0)
    now[0] += 30.0
    progress.begin()  # The time before this call, such as imports and tracing, does not count.
    now[0] += 60.0
    assert progress.train_seconds() == pytest.approx(3660.0)
    assert progress.measure() == 0.0


def test_log_has_few_lines_and_always_the_last(caplog):
    progress, now = make()
    for step in range(10, 110, 10):
        now[0] += 0.5
        progress.show(metrics(step, measured(progress, step)), force=step == 100)
    progress.close()
    lines = caplog.messages
    assert 3 <= len(lines) <= 5 and "step 100 " in lines[-1]
