"""Copies, comparison, fingerprint, checks and display of a config."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings import DATA_KEYS, PAD_ID, Data, data_entries, places_for
from bigbird_ja.settings.option import format_value
from bigbird_ja.settings.schema import OPTIONS, Config

if TYPE_CHECKING:
    from bigbird_ja.settings.resolve import Override

_USUAL_RATE = 5e-4  # of encoders 768 wide: BERT has 1e-4, ModernBERT 8e-4
_FAR_OFF = 30
_OTHER_LENGTH = 4  # times a preset's sequence length, from which its learning rate is questioned


def flatten(config: Config, data: Data | None = None) -> dict[str, Any]:
    """Return `section.key` to value, in the order of definition.

    With `data`, the facts of the data set stand in for what the config asks of `make-data`.
    """
    values = {
        f"{section}.{key}": value
        for section, entries in vars(config).items()
        for key, value in vars(entries).items()
    }
    return values | data_entries(data) if data else values


def varied(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with other values of some settings, by `section.key`."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    changed: dict[str, Any] = {
        section: dataclasses.replace(getattr(config, section), **names)
        for section, names in sections.items()
    }
    return dataclasses.replace(config, **changed)


def config_to_yaml(config: Config, data: Data | None = None) -> str:
    """Write a run as YAML, as `MODEL_DIR/config.yaml` holds it."""
    import yaml

    from bigbird_ja.storage.decode import FORMAT_VERSION

    values = dataclasses.asdict(config)
    for key, value in (data_entries(data) if data else {}).items():
        section, _, name = key.partition(".")
        values[section][name] = value
    values = {"format_version": FORMAT_VERSION, **values}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def mask_rates(config: Config) -> tuple[float, float, int] | None:
    """Return the mask rate at step 0 and at the last step, and the number of steps.

    None where training takes the data set's rate.
    """
    training = config.training
    first, last = training.masked_lm_prob, training.final_masked_lm_prob
    if first is None:
        return None
    return first, first if last is None else last, training.num_train_steps


def train_predictions(config: Config, data: Data) -> int:
    """Count the places for predictions in a sequence, enough for the highest mask rate."""
    rates = mask_rates(config)
    if rates is None:
        return data.max_predictions_per_seq
    return places_for(data.seq_length, max(rates[:2]))


def config_fingerprint(config: Config, data: Data) -> str:
    """Compute the SHA-256 (hex) of all that must stay the same between restarts of one run.

    A value at its default does not count, so that a new option leaves the fingerprints of earlier
    runs as they were.
    """
    counted = {
        key: value
        for key, value in flatten(config, data).items()
        if change_of(key) != "free" and value != (0 if key == PAD_ID else OPTIONS[key].default)
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def changes(before: tuple[Config, Data], now: tuple[Config, Data]) -> dict[str, list[Any]]:
    """Return setting -> [old, new] of every difference that a resumed run does not just accept."""
    old, new = flatten(*before), flatten(*now)
    differing = [key for key in old if old[key] != new[key] and change_of(key) != "free"]
    return {key: [old[key], new[key]] for key in differing}


def change_of(key: str) -> str:
    """Return what a resumed run accepts of a setting or fact: see `Option.change`."""
    return "fixed" if key == PAD_ID else OPTIONS[key].change


def echo_settings(
    config: Config,
    overrides: Iterable[Override],
    uses: Sequence[str] = tuple(OPTIONS),
    run: str | None = None,
    data: Data | None = None,
) -> str:
    """Word the settings that take effect and differ from the preset or the default, a line each.

    Args:
        config: the resolved config.
        overrides: what was set, in order.
        uses: the settings that the command uses; others take no effect.
        run: the `config.yaml` of a resumed run, whose settings then stand in for a preset's.
        data: of the run, where there is a data set.
    """
    final = flatten(config, data)
    last: dict[str, Override] = {}
    preset: dict[str, Override] = {}
    for override in overrides:
        last[override.key] = override
        if override.is_of_preset or override.source == run:
            preset[override.key] = override
    lines = [f"  {source}" for source in dict.fromkeys(o.source for o in preset.values())]
    for key, override in last.items():
        base = preset[key].value if key in preset else OPTIONS[key].default
        by_data = key not in DATA_KEYS and override.is_of_preset and final[key] != base
        if key not in uses or (override.value == base and not by_data):
            continue
        whose = "default" if key not in preset else "run" if run else "preset"
        shown = OPTIONS[key].default_text if whose == "default" else format_value(base)
        source = "the data" if by_data else override.source
        lines.append(f"  {key} = {format_value(final[key])}  ({whose} {shown}; from {source})")
    lines += [f"  {line}" for line in decided_by_data(last.values(), data)] if data else []
    return "\n".join(lines) if lines else "  (all defaults)"


def decided_by_data(overrides: Iterable[Override], data: Data) -> list[str]:
    """Word what a preset or a file says and the data set decides otherwise, a line each."""
    facts, said = data_entries(data), {o.key: o for o in overrides if not o.is_explicit}
    return [
        f"{key} = {format_value(facts[key])}  ({o.source} {format_value(o.value)}; from the data)"
        for key, o in said.items()
        if key in DATA_KEYS and o.value != facts[key]
    ]


def validate_config(config: Config) -> None:
    """Check what must hold between settings, whatever the data.

    Raises:
        BadInput: naming the key and what is allowed.
    """
    model, training = config.model, config.training
    if model.hidden_size % model.num_attention_heads:
        raise BadInput(
            f"model.hidden_size={model.hidden_size} is not divisible by"
            f" model.num_attention_heads={model.num_attention_heads}"
        )
    if model.initializer == "subspaces" and (
        model.num_attention_heads < 2 or model.hidden_size // model.num_attention_heads % 2
    ):
        raise BadInput(
            f"model.num_attention_heads={model.num_attention_heads}: model.initializer=subspaces"
            f" needs 2 or more, and an even part of model.hidden_size={model.hidden_size} for each"
        )
    if training.global_batch_size % training.gradient_accumulation_steps:
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} is not divisible by"
            f" training.gradient_accumulation_steps={training.gradient_accumulation_steps}"
        )


def validate_on_data(config: Config, data: Data) -> None:
    """Check what must hold between a run's settings and its data.

    Raises:
        BadInput: naming the settings and what to do.
    """
    model, training = config.model, config.training
    last = training.final_masked_lm_prob
    if last is not None and training.masked_lm_prob is None:
        raise BadInput(
            f"training.final_masked_lm_prob={last} has no effect without training.masked_lm_prob:"
            " set that too, or leave it out"
        )
    if (model.max_position_embeddings or 0) < data.seq_length:
        raise BadInput(
            f"model.max_position_embeddings={model.max_position_embeddings} is shorter than"
            f" the data's sequences of {data.seq_length}: raise it or leave it out"
        )
    if data.nsp and model.architecture == "modernbert":
        raise BadInput(
            "model.architecture=modernbert has no segments, and the data set's records are pairs of"
            " them (nsp): make the data without --nsp, or train a bigbird"
        )
    if data.nsp and not model.attend_across_documents:
        raise BadInput(
            "model.attend_across_documents=false hides segment B from segment A: there is no next"
            " sentence to predict: leave it at true, or make the data without --nsp"
        )


def config_warnings(
    config: Config,
    from_scratch: bool = True,
    overrides: Iterable[Override] = (),
    data: Data | None = None,
) -> list[str]:
    """Warn of settings that are legal but suspicious, one line each.

    Args:
        config: the resolved config.
        from_scratch: whether training begins from random weights: else a low rate is usual.
        overrides: what was set, in order.
        data: of the run, if it is known.
    """
    training = config.training
    lines = _unusual_length(config, overrides, data) if data else []
    if training.warmup_steps >= training.num_train_steps:
        reached = training.num_train_steps / training.warmup_steps
        lines.append(
            f"training.warmup_steps={training.warmup_steps:,} is not below"
            f" training.num_train_steps={training.num_train_steps:,}: the learning rate rises to"
            f" {reached:.1%} of training.learning_rate at the end, and never decays"
        )
    rate, usual = training.learning_rate, _USUAL_RATE * math.sqrt(768 / config.model.hidden_size)
    if rate >= usual * _FAR_OFF or (from_scratch and rate <= usual / _FAR_OFF):
        side = "above" if rate > usual else "below"
        lines.append(
            f"training.learning_rate={rate:g} is {_FAR_OFF} times or more {side} what models of"
            f" this width usually take, {usual:.1g}, with AdamW and with Muon, whose updates are"
            " scaled to AdamW's here (rates of 0.02 are for Muon without that scale)"
        )
    return lines


def _unusual_length(config: Config, overrides: Iterable[Override], data: Data) -> list[str]:
    """Warn of a preset's learning rate with sequences of quite another length than its own."""
    every = list(overrides)
    last = {override.key: override for override in every}
    preset = {override.key: override.value for override in every if override.is_of_preset}
    rate, length = last.get("training.learning_rate"), preset.get("make_data.seq_length")
    if rate is None or not rate.is_of_preset or length is None:
        return []
    batch = config.training.global_batch_size
    wanted = preset.get("training.global_batch_size", batch) * length
    given = batch * data.seq_length
    if 1 / _OTHER_LENGTH < given / wanted < _OTHER_LENGTH:
        return []
    return [
        f"training.learning_rate={rate.value:g} of {rate.source} is meant for {wanted:,} tokens per"
        f" step ({wanted // length} x {length:,}), this run has {given:,} ({batch} x"
        f" {data.seq_length:,}): --set training.global_batch_size="
        f"{max(1, wanted // data.seq_length)} keeps them, or choose another learning rate"
    ]
