"""Number of predictions of a data set, which follows from the settings."""

from bigbird_ja.settings.data_facts import count_predictions
from testkit.configs import resolve_config
from tests.settings.support import run


def test_predictions_follow_the_length_and_the_rate():
    def predictions(path, *sets):
        return count_predictions(resolve_config(path, sets)[0].make_data)

    assert predictions(None) == 615
    assert predictions(None, "make_data.masked_lm_prob=0.3") == 1229
    assert predictions("base-4096", "make_data.seq_length=16384") == 2458
    assert predictions("base-4096", "make_data.max_predictions_per_seq=9") == 9
    assert run("make_data.seq_length=512")[1].max_predictions_per_seq == 77
