"""Values of a config: by key, as YAML, in words, what follows from them, what may change."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bigbird_ja.settings.option import format_value, is_used
from bigbird_ja.settings.schema import FIXED_BY_DATA, OPTIONS, SECTIONS, Config, MakeDataConfig

if TYPE_CHECKING:
    from bigbird_ja.settings.resolve import Override

# The seed, and the optimiser, whose state is its own.
_OF_THE_WHOLE_RUN = ("training.seed", "training.optimizer")

_USUAL_RATE = 5e-4  # of encoders 768 wide: BERT has 1e-4, ModernBERT 8e-4
_FAR_OFF = 30


def flatten(config: Config) -> dict[str, Any]:
    """`section.key` to value, in the order of definition."""
    return {
        f"{section}.{key}": value
        for section, values in dataclasses.asdict(config).items()
        for key, value in values.items()
    }


def get_value(config: Config, key: str) -> Any:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def set_value(config: Config, key: str, value: Any) -> None:
    """Sets `section.key` in place."""
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)


def config_to_yaml(config: Config) -> str:
    """The resolved config as YAML, as `MODEL_DIR/config.yaml` holds it."""
    import yaml

    from bigbird_ja.storage.decode import FORMAT_VERSION

    values = {"format_version": FORMAT_VERSION, **dataclasses.asdict(config)}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def mask_rates(config: Config) -> tuple[float, float, int] | None:
    """The share of tokens to predict at step 0 and at the last step, and the number of steps; None
    where training takes the data set's."""
    training = config.training
    first, last = training.masked_lm_prob, training.final_masked_lm_prob
    if first is None:
        return None
    return first, first if last is None else last, training.num_train_steps


def train_predictions(config: Config) -> int:
    """Places for predictions in a sequence that is trained on: enough for the highest rate."""
    rates = mask_rates(config)
    if rates is None:
        return predictions_of(config.make_data)
    return _enough(config.make_data.seq_length, max(rates[:2]))


def predictions_of(making: MakeDataConfig) -> int:
    """Most predictions in a sequence: as stated, else what a full sequence needs for its share."""
    if making.max_predictions_per_seq is not None:
        return making.max_predictions_per_seq
    if (making.seq_length, making.masked_lm_prob) == (4096, 0.15):
        return 600  # of the run that this began with; a full sequence would need 615
    return _enough(making.seq_length, making.masked_lm_prob)


def _enough(seq_length: int, prob: float) -> int:
    return max(1, math.ceil(round(seq_length * prob, 6)))


def config_fingerprint(config: Config) -> str:
    """SHA-256 (hex) of all that must stay the same between restarts of one run.

    A value at its default does not count, so that a new option leaves the fingerprints of earlier
    runs as they were.
    """
    counted = {
        key: value
        for key, value in flatten(config).items()
        if not is_free(key) and value != OPTIONS[key].default
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def differences(old: Config, new: Config) -> list[str]:
    """`key: old -> new` for every setting that a `model_dir` does not accept a change of."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and not is_free(key)
    ]


def may_change_in_mid_run(key: str) -> bool:
    """Whether a resumed run may be given another value by --set: what neither its state nor the
    order of its data depends on."""
    return OPTIONS[key].section == "training" and key not in _OF_THE_WHOLE_RUN


def is_free(key: str) -> bool:
    """Whether a resumed run may have another value of this setting."""
    option = OPTIONS[key]
    makes_data = option.section in ("tokenize", "make_data") and not option.fixed_by_data
    return option.changeable or makes_data


def config_warnings(config: Config) -> list[str]:
    """What is allowed and yet hardly meant, one line each."""
    training = config.training
    lines = []
    if training.warmup_steps >= training.num_train_steps:
        reached = training.num_train_steps / training.warmup_steps
        lines.append(
            f"training.warmup_steps={training.warmup_steps:,} is not below"
            f" training.num_train_steps={training.num_train_steps:,}: the learning rate rises to"
            f" {reached:.1%} of training.learning_rate at the end, and never decays"
        )
    rate, usual = training.learning_rate, _USUAL_RATE * math.sqrt(768 / config.model.hidden_size)
    if not usual / _FAR_OFF < rate < usual * _FAR_OFF:
        side = "above" if rate > usual else "below"
        lines.append(
            f"training.learning_rate={rate:g} is {_FAR_OFF} times or more {side} what models of"
            f" this width usually take, {usual:.1g}, with AdamW and with Muon, whose updates are"
            " scaled to AdamW's here (rates of 0.02 are for Muon without that scale)"
        )
    return lines


def echo_settings(
    config: Config,
    overrides: Iterable[Override],
    uses: Sequence[str] = SECTIONS,
    run: str | None = None,
) -> str:
    """One line per setting that takes effect and differs from the preset, or from the default.

    Args:
        config: the resolved config.
        overrides: what was set, in order.
        uses: sections and keys that the command uses; others take no effect.
        run: the `config.yaml` of a run that goes on with its settings, which then stand in for a
            preset's.
    """
    final = flatten(config)
    last: dict[str, Override] = {}
    preset: dict[str, Override] = {}
    for override in overrides:
        last[override.key] = override
        if override.is_of_preset or override.source == run:
            preset[override.key] = override
    lines = [f"  {source}" for source in dict.fromkeys(o.source for o in preset.values())]
    for key, override in last.items():
        base = preset[key].value if key in preset else OPTIONS[key].default
        by_data = key not in FIXED_BY_DATA and override.is_of_preset and final[key] != base
        if not is_used(key, uses) or (override.value == base and not by_data):
            continue
        whose = "default" if key not in preset else "run" if run else "preset"
        shown = OPTIONS[key].default_text if whose == "default" else format_value(base)
        source = "the data" if by_data else override.source
        lines.append(f"  {key} = {format_value(final[key])}  ({whose} {shown}; from {source})")
    return "\n".join(lines) if lines else "  (all defaults)"
