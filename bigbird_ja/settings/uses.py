"""Which settings each command uses: sections, and single keys. Others are refused there."""

from __future__ import annotations

from bigbird_ja.settings.schema import FIXED_BY_DATA, OPTIONS


def all_but(section: str, *unused: str) -> tuple[str, ...]:
    """The keys of a section but for these; one that is declared later is among them."""
    keys = [key for key, option in OPTIONS.items() if option.section == section]
    return tuple(key for key in keys if key.partition(".")[2] not in unused)


LENGTH_SETTINGS: tuple[str, ...] = tuple(
    f"model.{name}"
    for name in ("attention_type", "block_size", "num_random_blocks", "random_pattern")
)

RUN_SETTINGS: tuple[str, ...] = ("model", "data", "training", "checkpoints", "tpu", *FIXED_BY_DATA)

_FIRST_VALUES = ("initializer", "initializer_range")
# How a run reports, evaluates and is watched: no part of a step.
_ATTENDANCE = (
    "log_every_steps", "eval_every_steps", "eval_max_batches", "max_loop_seconds", "stall_minutes",
)  # fmt: skip

# `preflight`: what the compiled step is made of.
STEP_SETTINGS: tuple[str, ...] = (
    *all_but("model", *_FIRST_VALUES),
    *all_but("training", *_ATTENDANCE),
    "tpu.num_cores",
    *(key for key in FIXED_BY_DATA if key != "make_data.mask_unit"),
)

# `plan`: what operations, memory on disk, steps and their number follow from. How long a step takes
# is measured by `preflight`, or assumed.
PLAN_SETTINGS: tuple[str, ...] = (
    *all_but(
        "model", *_FIRST_VALUES, "hidden_act", "hidden_dropout_prob", "layer_norm_eps",
        "attention_implementation", "attend_across_documents",
    ),
    *all_but(
        "training", *_ATTENDANCE, "learning_rate", "schedule", "decay_fraction", "update_rule",
        "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "clip_norm", "dtype",
        "gradient_checkpointing", "optimizer_sharding", "gradient_sum_dtype", "seed",
    ),
    *all_but("checkpoints", "save_every_steps"),
    *FIXED_BY_DATA,
)  # fmt: skip
