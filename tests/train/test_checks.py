"""What is said before anything is written."""

from __future__ import annotations

from bigbird_ja import settings
from bigbird_ja.train import checks


def test_a_setting_that_only_another_engine_reads_is_said() -> None:
    config, _ = settings.resolve(None, ["training.max_loop_seconds=3"])
    assert checks.without_effect(config, "pjrt") == ["training.max_loop_seconds=3.0"]
    assert checks.without_effect(config, "estimator") == []
    assert checks.without_effect(settings.Config(), "pjrt") == []
