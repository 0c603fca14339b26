"""A model that starts from a folder of transformers computes the same."""

import numpy as np
import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.settings.values import replace_settings
from bigbird_ja.train.warm_start import load_initial
from testkit.configs import with_data
from tests.huggingface.folders import KINDS, adopted, made, ours_and_theirs, transformers

pytestmark = pytest.mark.both


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_folder_computes_the_same_here(kind, tmp_path):
    theirs = made(kind, tmp_path)
    ours, expected = ours_and_theirs(tmp_path, theirs)
    gap = np.abs(ours - expected).max()
    print(f"{kind}: logits differ by {gap:.1e}, transformers {transformers.__version__}")
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    assert np.abs(expected).max() > 0.5


def test_another_architecture_and_surplus_tensors(tmp_path):
    made("modernbert", tmp_path)
    config = adopted(tmp_path)
    config = replace_settings(config, {"model.num_layers": 2})
    with pytest.raises(BadInput, match="tensors of its encoder have no place"):
        load_initial(str(tmp_path), *with_data(config))
    config = replace_settings(config, {"model.architecture": "bigbird"})
    with pytest.raises(BadInput, match="a modernbert model becomes a modernbert"):
        load_initial(str(tmp_path), *with_data(config))
