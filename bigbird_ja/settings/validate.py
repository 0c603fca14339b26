"""What must hold within a setting, by its declaration, and between settings."""

from __future__ import annotations

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import OPTIONS, Config
from bigbird_ja.settings.values import get_value

_LONGEST = 1024  # characters of a text


def validate_config(config: Config) -> None:
    """Checks choices, ranges and what must divide.

    Raises:
        BadInput: naming the key and what is allowed.
    """
    for key, option in OPTIONS.items():
        value = get_value(config, key)
        option.check(value)
        if isinstance(value, str) and (not value.isprintable() or len(value) > _LONGEST):
            raise BadInput(f"{key}={value[:40]!r}: printable text of at most {_LONGEST} characters")
    model, training = config.model, config.training
    if model.hidden_size % model.num_attention_heads:
        raise BadInput(
            f"model.hidden_size={model.hidden_size} is not divisible by"
            f" model.num_attention_heads={model.num_attention_heads}"
        )
    if model.initializer == "mimetic":
        _validate_mimetic(config)
    if training.masked_lm_prob is None and training.final_masked_lm_prob is not None:
        raise BadInput(
            f"training.final_masked_lm_prob={training.final_masked_lm_prob}: where the share of"
            " predicted tokens begins is not said: set training.masked_lm_prob too"
        )
    if training.first_seq_length is None and training.first_seq_length_steps is not None:
        raise BadInput(
            f"training.first_seq_length_steps={training.first_seq_length_steps} has no effect"
            " without training.first_seq_length: add that, or leave it out"
        )
    if training.global_batch_size % training.gradient_accumulation_steps:
        raise BadInput(
            f"training.global_batch_size={training.global_batch_size} is not divisible by"
            f" training.gradient_accumulation_steps={training.gradient_accumulation_steps}"
        )


def validate_on_data(config: Config) -> None:
    """Checks what must hold between a run's settings and its data, whose `make_data` are known.

    Raises:
        BadInput: naming the settings and what to do.
    """
    model, data, length = config.model, config.make_data, config.training.first_seq_length
    if (model.max_position_embeddings or 0) < data.seq_length:
        raise BadInput(
            f"model.max_position_embeddings={model.max_position_embeddings} is shorter than"
            f" the data's sequences of {data.seq_length}: raise it or leave it out"
        )
    if data.nsp and not model.attend_across_documents:
        raise BadInput(
            "model.attend_across_documents=false hides segment B from segment A: there is no next"
            " sentence to predict: leave it at true, or make the data without --nsp"
        )
    if length is None:
        return
    name = f"training.first_seq_length={length}"
    if config.training.first_seq_length_steps is None:
        raise BadInput(
            f"{name}: until which step is not given: set training.first_seq_length_steps too"
        )
    if length >= data.seq_length or data.seq_length % length:
        raise BadInput(
            f"{name} does not cut the data's sequences of {data.seq_length} tokens into equal"
            f" parts: use {data.seq_length // 2}, or another length that divides it"
        )
    if data.nsp:
        raise BadInput(
            f"{name} would cut segment B from segment A: make the data without --nsp, or leave the"
            " setting out"
        )
    if data.masking == "static":
        raise BadInput(
            f"{name} needs masks that are drawn while training: make the data with"
            " --masking=dynamic, or leave the setting out"
        )


def _validate_mimetic(config: Config) -> None:
    if config.model.hidden_size % 2:
        raise BadInput(
            f"model.hidden_size={config.model.hidden_size} is odd: model.initializer=mimetic pairs"
            " sines with cosines"
        )
    if config.training.seed < 0:
        raise BadInput(
            f"training.seed={config.training.seed}: model.initializer=mimetic takes no negative one"
        )


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
    until = training.first_seq_length_steps
    if until is not None and until >= training.num_train_steps:
        lines.append(
            f"training.first_seq_length_steps={until:,} is not below"
            f" training.num_train_steps={training.num_train_steps:,}: no step is on whole sequences"
        )
    return lines
