"""The one typed configuration: what every setting means, and how it gets its value.

`schema` declares each setting once, in its field; the other modules follow from it: `resolve`
(defaults, then `--config PRESET or FILE.yaml`, then `--set section.key=value`, then plain flags,
then the data set), `validate`, `fingerprint`, `echo`.
"""

from bigbird_ja.settings.echo import echo
from bigbird_ja.settings.fingerprint import (
    check_mid_run,
    differences,
    fingerprint,
    is_free,
    may_change_in_mid_run,
)
from bigbird_ja.settings.preset import preset_path
from bigbird_ja.settings.resolve import (
    Override,
    complete,
    load_resolved,
    resolve,
)
from bigbird_ja.settings.schema import (
    FIXED_BY_DATA,
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
from bigbird_ja.settings.suggestions import nearest
from bigbird_ja.settings.validate import validate, warnings
from bigbird_ja.settings.values import (
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

__all__ = [
    "FIXED_BY_DATA",
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
    "complete",
    "copy",
    "differences",
    "echo",
    "fingerprint",
    "first_phase",
    "flatten",
    "get",
    "is_free",
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
]
