"""Build the config of a run, and describe its data, without a data set."""

import math

from bigbird_ja.cli.command_flags import declared, own_flags
from bigbird_ja.cli.config import read_sets
from bigbird_ja.model.params import make_parameter_specs
from bigbird_ja.settings import resolve
from bigbird_ja.settings.data_facts import Data, derive_data
from bigbird_ja.settings.resolve import fit_to_data
from bigbird_ja.settings.schema import Config


def resolve_config(config=None, sets=(), adopted=(), **about):
    """Resolve a config from several sources.

    Args:
        config: name of a preset, path of a file, or a config.
        sets: settings as `section.key=value`.
        adopted: settings that `pretrain` reads from the model of `init_from`, each with its source.
        about: other arguments of `resolve.resolve_config`.
    """
    given = resolve.given_layers(read_sets(sets))
    return resolve.resolve_config([*resolve.base_layers(config), *adopted, *given], **about)


def resolve_flags(args):
    """Resolve the config that the flags of a command specify."""
    flags = [flag for flag in own_flags(args) if declared(flag).setting]
    given = {declared(flag).setting: flag.value for flag in flags if flag.value is not None}
    layers = [*resolve.base_layers(args.config or None)]
    layers += resolve.given_layers(read_sets(args.set), given)
    return resolve.resolve_config(layers, declared(args["set"]).uses)


def fitted(preset=None, sets=()) -> Config:
    """Resolve a config, and fit it to the data set that `make-data` would build with it."""
    config, overrides = resolve_config(preset, sets)
    return fit_to_data(config, derive_data(config), overrides)


def with_data(config) -> tuple[Config, Data]:
    """Return the config, and a description of the data set that `make-data` would build with it."""
    return config, derive_data(config)


def count_parameters(config: Config, data: Data) -> int:
    """Count the scalars in all parameters of a model."""
    return sum(math.prod(spec.shape) for spec in make_parameter_specs(config, data).values())
