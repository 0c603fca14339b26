"""Makes the (Config, Data) of a run that has no data set."""

import math

from bigbird_ja.model.params import parameter_specs
from bigbird_ja.settings.data_facts import Data, requested_data
from bigbird_ja.settings.resolve import fit_to_data, resolve_config
from bigbird_ja.settings.schema import Config


def fitted(preset=None, sets=()) -> Config:
    """Resolve settings, and fit them to the data that they ask `make-data` for."""
    config, overrides = resolve_config(preset, sets)
    return fit_to_data(config, requested_data(config), overrides)


def with_data(config) -> tuple[Config, Data]:
    """Return a config with the data that it asks `make-data` for."""
    return config, requested_data(config)


def count_parameters(config: Config, data: Data) -> int:
    """Count the scalars in all parameters of a model."""
    return sum(math.prod(spec.shape) for spec in parameter_specs(config, data).values())
