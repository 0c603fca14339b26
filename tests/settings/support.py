"""Functions that build the settings of a run, for the tests of settings."""

from bigbird_ja.settings.data_facts import Data, derive_data
from bigbird_ja.settings.resolve import fit_to_data
from testkit.configs import resolve_config

DATA = Data(
    vocab_size=8000,
    seq_length=256,
    max_predictions_per_seq=38,
    masking="dynamic",
    nsp=False,
    mask_unit="subword",
    masked_lm_prob=0.15,
    special_ids={"pad": 0},
)


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def run(*sets, path=None, data=None):
    """Return the config and the data of a run.

    Without `data`, the data set is the one that `make-data` would build with the same settings.
    """
    config, overrides = resolve_config(path, sets)
    where = "data" if data else ""
    data = data or derive_data(config)
    return fit_to_data(config, data, overrides, where), data


def completed(*sets, path=None, data=None):
    """Return only the config of a run."""
    return run(*sets, path=path, data=data)[0]
