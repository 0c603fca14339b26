"""Start of a run: the settings that it adopts."""

from types import SimpleNamespace

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.folder import ModelDir
from bigbird_ja.settings.values import flatten
from bigbird_ja.train import start
from bigbird_ja.train.job import Dependencies
from testkit import synthetic
from testkit.configs import fitted, with_data


class Args(SimpleNamespace):
    """Arguments of `pretrain`."""

    def __getitem__(self, name):
        return SimpleNamespace()  # its value may be set


@pytest.fixture
def adopted(tmp_path):
    """`adopted(config=None)`: settings, by key with their source, that a start adopts."""
    synthetic.write(tmp_path / "data")

    def adopted(**more):
        found = []

        def resolve(overrides):
            found.extend(overrides)
            raise BadInput("nothing is resolved here")

        places = {"data_dir": str(tmp_path / "data"), "model_dir": str(tmp_path / "model")}
        args = Args(**{"max_train_minutes": None, "overwrite": False, **places, **more})
        with pytest.raises(BadInput, match="nothing is resolved"):
            start.run(args, resolve, Dependencies(log=lambda text: None))
        return {k: (value, layer.source) for layer in found for k, value in layer.values.items()}

    return adopted


def test_new_run_adopts_settings_only_from_an_encoders_folder(adopted, tmp_path):
    assert adopted(config=None, init_from=None) == {}
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 32}')
    (tmp_path / "model.safetensors").touch()
    found = adopted(config="base-4096", init_from=str(tmp_path))
    assert found["model.hidden_size"] == (32, f"{tmp_path}/config.json")


def test_continued_run_adopts_its_own_settings(adopted, tmp_path):
    """All without --config; those that an encoder's folder gave it with --config."""
    config, data = with_data(fitted(None, ["model.hidden_size=96", "training.seed=7"]))
    model_dir = ModelDir(str(tmp_path / "model"))
    with model_dir.locked():
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
