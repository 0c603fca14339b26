"""Start of `pretrain`: settings adopted from a run or an encoder, interrupts, and bad arguments."""

import signal
import time

import pytest

from bigbird_ja.errors import BadInput, Interrupted
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.process.signals import SIGNALS
from bigbird_ja.settings.resolve import base_layers
from bigbird_ja.settings.values import flatten
from bigbird_ja.train import start
from testkit import synthetic
from testkit.configs import fitted, with_data


@pytest.fixture
def adopted(tmp_path, monkeypatch):
    """Return a function that starts `pretrain`, and returns the settings that it adopts.

    Settings are adopted from an existing run or an encoder's folder. The result maps the key of
    each setting to its value and the source of the value.
    """
    synthetic.write(tmp_path / "data")

    def adopted(config, **more):
        found = {}

        def resolve(layers, uses):
            for layer in layers[len(base_layers(config)) :]:
                found.update({key: (value, layer.source) for key, value in layer.values.items()})
            raise BadInput("nothing is resolved here")

        monkeypatch.setattr(start, "resolve_config", resolve)
        places = {"data_dir": tmp_path / "data", "model_dir": tmp_path / "model"}
        with pytest.raises(BadInput, match="nothing is resolved"):
            start.pretrain(config=config, **places, **more)
        return found

    return adopted


def test_an_interrupt_stops_the_call_and_handlers_are_restored(tmp_path, monkeypatch):
    """Interrupt `pretrain` by a second SIGINT, and restore the previous signal handlers."""
    synthetic.write(tmp_path / "data")
    before = [signal.getsignal(number) for number in SIGNALS]

    def train(job, model_dir, stop, exit_process):
        signal.raise_signal(signal.SIGINT)
        end = time.monotonic() + 30
        while not stop.is_set():
            assert time.monotonic() < end
        signal.raise_signal(signal.SIGINT)
        time.sleep(30)
        raise AssertionError("not interrupted")

    monkeypatch.setattr("bigbird_ja.train.train.train", train)
    places = {"data_dir": tmp_path / "data", "model_dir": tmp_path / "model"}
    with pytest.raises(Interrupted, match="interrupted again"):
        start.pretrain(config="tiny-cpu", **places)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_wrong_choices_are_refused_by_their_names(tmp_path):
    places = {"data_dir": tmp_path, "model_dir": tmp_path}
    with pytest.raises(BadInput, match="`engine` jax: use one of auto, estimator, pjrt"):
        start.pretrain(**places, engine="jax")


def test_new_run_adopts_settings_only_from_an_encoders_folder(adopted, tmp_path):
    assert adopted(config=None, init_from=None) == {}
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 32}')
    (tmp_path / "model.safetensors").touch()
    found = adopted(config="base-4096", init_from=str(tmp_path))
    assert found["model.hidden_size"] == (32, f"{tmp_path}/config.json")


def test_continued_run_adopts_its_own_settings(adopted, tmp_path):
    """Adopt all settings of the existing run if `config` is None.

    With `config` and the folder of an encoder, adopt only the run's settings of section `model`.
    """
    config, data = with_data(fitted(None, ["model.hidden_size=96", "training.seed=7"]))
    model_dir = ModelDir(str(tmp_path / "model"))
    with model_dir.lock():
        model_dir.begin()
        model_dir.write_settings(config, data, str(tmp_path / "none"))
        run_log.append_line(model_dir.join(run_log.METRICS), {"step": 1, "time": 0.0})
    found = adopted(config=None, init_from=None)
    assert found.keys() == flatten(config).keys()
    assert found["training.seed"] == (7, model_dir.join("config.yaml"))
    assert adopted(config="base-4096", init_from=None) == {}
    (tmp_path / "model.safetensors").touch()
    found = adopted(config="base-4096", init_from=str(tmp_path))
    assert found["model.hidden_size"] == (96, "the run")
    assert {key.partition(".")[0] for key in found} == {"model"}
