"""What is checked before anything is written; the rest is tested through the command."""

from __future__ import annotations

from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.train import inputs


def test_a_setting_that_only_another_engine_reads_is_named() -> None:
    config, _ = resolve_config(None, ["training.max_loop_seconds=3"])
    assert inputs.without_effect(config, "pjrt") == ["training.max_loop_seconds=3.0"]
    assert inputs.without_effect(config, "estimator") == []
    assert inputs.without_effect(Config(), "pjrt") == []
