"""The one typed configuration: what every setting means, and how it gets its value.

`schema` declares each setting once, in its field; the other modules follow from it: `resolve`
(defaults, then `--config PRESET or FILE.yaml`, then `--set section.key=value`, then plain flags,
then the data set), `validate`, `fingerprint`, `echo`.
"""

from bigbird_ja.config.echo import echo
from bigbird_ja.config.fingerprint import (
    check_mid_run,
    differences,
    digest,
    fingerprint,
    is_free,
    may_change_in_mid_run,
)
from bigbird_ja.config.presets import preset_path
from bigbird_ja.config.resolve import (
    Override,
    from_dict,
    left_to_data,
    load_resolved,
    resolve,
    with_data_set,
    without_data_set,
)
from bigbird_ja.config.schema import (
    DATA_SET_KEYS,
    OPTIONS,
    SECTIONS,
    CheckpointsConfig,
    Config,
    DataConfig,
    MakeDataConfig,
    ModelConfig,
    TokenizeConfig,
    TpuConfig,
    TrainingConfig,
)
from bigbird_ja.config.validate import validate, warnings
from bigbird_ja.config.values import (
    copy,
    first_phase,
    flatten,
    get,
    mask_rates,
    predictions_of,
    put,
    to_yaml,
    train_predictions,
)
from bigbird_ja.names import nearest

__all__ = [
    "DATA_SET_KEYS",
    "OPTIONS",
    "SECTIONS",
    "CheckpointsConfig",
    "Config",
    "DataConfig",
    "MakeDataConfig",
    "ModelConfig",
    "Override",
    "TokenizeConfig",
    "TpuConfig",
    "TrainingConfig",
    "check_mid_run",
    "copy",
    "differences",
    "digest",
    "echo",
    "fingerprint",
    "first_phase",
    "flatten",
    "from_dict",
    "get",
    "is_free",
    "left_to_data",
    "load_resolved",
    "mask_rates",
    "may_change_in_mid_run",
    "nearest",
    "predictions_of",
    "preset_path",
    "put",
    "resolve",
    "to_yaml",
    "train_predictions",
    "validate",
    "warnings",
    "with_data_set",
    "without_data_set",
]
