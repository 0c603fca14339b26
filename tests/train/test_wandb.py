"""Logging to Weights & Biases, with a fake library."""

from unittest import mock

from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.train.wandb import WandbLog


def test_numbers_are_written_under_their_prefix():
    library = mock.Mock()
    log = WandbLog(library, "0123abcd", "model", flatten(Config()), print)
    log.write(3, {"loss": 2.0, "examples": ["text"]}, "train")
    log.close()
    run, options = library.init.return_value, library.init.call_args.kwargs
    assert run.mock_calls == [mock.call.log({"train/loss": 2.0}, step=3), mock.call.finish()]
    assert (options["id"], options["name"], options["resume"]) == ("0123abcd", "model", "allow")
    assert options["config"]["training.global_batch_size"] == 16
    assert options["settings"]["console"] == "off" and options["settings"]["disable_git"]


def test_a_failure_is_logged_once_and_training_continues():
    library, printed = mock.Mock(), []
    library.init.return_value.log.side_effect = ConnectionError("no network")
    log = WandbLog(library, "0123abcd", "model", flatten(Config()), printed.append)
    for step in range(3):
        log.write(step, {"loss": 1.0}, "train")
    log.close()
    assert len(printed) == 1 and "no network" in printed[0]
