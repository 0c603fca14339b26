"""Weights of another architecture, or of more layers than the model has, are refused."""

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data
from tests.huggingface.folders import adopted, made

pytestmark = pytest.mark.both


def test_another_architecture_and_surplus_tensors(tmp_path):
    made("modernbert", tmp_path)
    config = adopted(tmp_path)
    config = replace_settings(config, {"model.num_layers": 2})
    with pytest.raises(BadInput, match=r"tensors of its encoder.* have no place"):
        load_initial(str(tmp_path), *with_data(config))
    config = replace_settings(config, {"model.architecture": "bigbird"})
    with pytest.raises(BadInput, match="a modernbert model becomes a modernbert"):
        load_initial(str(tmp_path), *with_data(config))
