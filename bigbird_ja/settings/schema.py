"""Every setting of a run: type, default, range or choices, unit and meaning.

A new setting is one field here, or in `settings` if it is about making data. Flags, validation,
`--help`, docs/settings.md, `bigbird-ja config`, the echo, its commands and the changes that a
resumed run accepts follow from it; `option.Setting` lists the arguments of `setting`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from bigbird_ja.settings import SEEDS, MakeDataConfig, TokenizeConfig
from bigbird_ja.settings.option import INT64_MAX, LONGEST_RUN, Setting, setting, settings_of

_BIGBIRD = "model.architecture=bigbird"
_MODERNBERT = "model.architecture=modernbert"
_IN_BLOCKS = f"{_BIGBIRD} & model.attention_type=block_sparse|simulated_sparse"

# Commands, for `by`: settings that only a run uses, settings of the compiled step (`preflight`),
# and those that operations, steps and the work lost to preemptions depend on (`plan`).
_RUN = ("pretrain", "launch")
_STEP = (*_RUN, "preflight")
_PLAN = (*_RUN, "plan")
_ALL = (*_RUN, "preflight", "plan")
_MAKING = (*_ALL, "make-data")

_in_step = partial(setting, by=_STEP)
_in_blocks = partial(setting, by=_MAKING, only_with=_IN_BLOCKS)
_rotary = partial(setting, by=_STEP, only_with=_MODERNBERT)
_windowed = partial(setting, only_with=_MODERNBERT)
_logged = partial(setting, by=_RUN, change="free")
_evaluated = partial(_logged, needs_flag="mode=train_and_eval")
_STEPS = (1, LONGEST_RUN)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of the encoder.

    BigBird (Zaheer et al. 2020, arXiv:2007.14062), post-norm like BERT, or ModernBERT (Warner et
    al. 2024, arXiv:2412.13663).
    """

    architecture: Literal["bigbird", "modernbert"] = setting(
        "bigbird",
        "Architecture. modernbert: pre-norm, rotary positions, gated MLPs, local and global layers;"
        " by default its exact gelu, layer norms (1e-5) and no dropout.",
    )
    vocab_size: int | None = setting(
        None, "Rows of the embedding table.", (1, 10_000_000), "entries", none="from the data set"
    )
    hidden_size: int = setting(768, "Width of the encoder.", (1, 65_536))
    num_layers: int = setting(12, "Layers of the encoder.", (1, 1000), "layers")
    num_attention_heads: int = setting(
        12, "Attention heads of a layer; they divide hidden_size.", (1, 1024), "heads"
    )
    intermediate_size: int = setting(
        3072, "Width of a layer's feed-forward network.", (1, 1_000_000)
    )
    hidden_act: Literal["gelu_new", "gelu", "relu"] = _in_step(
        "gelu_new",
        "Activation; gelu_new: tanh approximation, as in Google's BigBird.",
        modernbert="gelu",
    )
    max_position_embeddings: int | None = _in_step(
        None,
        "Rows of the position table: the longest input.",
        (1, 10_000_000),
        "tokens",
        none="the data's seq_length",
    )
    hidden_dropout_prob: float = _in_step(
        0.1,
        "Dropout of hidden states; block-sparse attention weights have none.",
        (0.0, 0.9),
        modernbert=0.0,
    )
    initializer_range: float = setting(
        0.02, "Standard deviation of the initial weights (truncated normal).", (0.0, 10.0), by=_RUN
    )
    initializer: Literal["normal", "subspaces"] = setting(
        "normal",
        "Initialization. subspaces: each head attends to one neighbor from the first step on.",
        modernbert="normal",
        by=_RUN,
    )
    layer_norm_eps: float = _in_step(1e-12, "Epsilon of layer norms.", (0.0, 1.0), modernbert=1e-5)
    attention_type: Literal["block_sparse", "original_full", "simulated_sparse"] = setting(
        "block_sparse",
        "Block-sparse, full, or full with the sparse mask (for comparisons).",
        only_with=_BIGBIRD,
        by=_MAKING,
    )
    block_size: int = _in_blocks(64, "Tokens per attention block.", (1, 4096), "tokens")
    num_random_blocks: int = _in_blocks(
        3, "Random key blocks per query block (`rolled` rounds up to even).", (0, 64), "blocks"
    )
    random_pattern: Literal["rolled", "independent"] = _in_blocks(
        "rolled",
        "Random blocks. rolled: whole tiles, with one shift for all rows of a head; independent:"
        " drawn for each row and head.",
    )
    pattern_seed: int = setting(
        0, "Seed for the random blocks, drawn once.", (0, 2**32 - 1), only_with=_IN_BLOCKS
    )
    attention_implementation: Literal["auto", "xla", "kernel"] = _in_step(
        "auto",
        "Computation of attention. kernel: one kernel each way, without scores in memory; needs"
        " the engine pjrt and a newer TPU. auto: if measured faster (v5e, v6e).",
        change="free",
    )
    attend_across_documents: bool = _in_step(True, "Attention between the documents of a sequence.")
    local_attention: int = _windowed(
        128, "Window of a local layer, half on each side.", (2, 1_000_000), "tokens"
    )
    global_attn_every_n_layers: int = _windowed(
        3, "Layers 0, n, 2n, ... attend globally, the others locally.", (1, 1000), "layers"
    )
    global_rope_theta: float = _rotary(
        160_000.0,
        "Base of rotary positions in global layers; 160,000 for 8,192 tokens.",
        (1.0, 1e12),
    )
    local_rope_theta: float = _rotary(
        10_000.0, "Base of rotary positions in local layers.", (1.0, 1e12)
    )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings for reading a data set."""

    mask_unit: Literal["subword", "whole_word", "span"] | None = setting(
        None, "Unit of dynamic masks, if not the data set's.", none="from the data set"
    )
    shuffle_window: int = setting(
        8, "Number of shards that are shuffled together.", (1, 100_000), "shards"
    )
    seed: int = setting(12_345, "Seed for shuffling and dynamic masking.", SEEDS)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the optimizer and its schedule. One optimizer step is one `global_step`."""

    num_train_steps: int = setting(
        1_400_000,
        "Total steps; raise it to continue a finished run.",
        _STEPS,
        "steps",
        change="free",
    )
    global_batch_size: int = setting(
        16, "Sequences per step, all cores and micro-batches together.", (1, 1_000_000), "sequences"
    )
    gradient_accumulation_steps: int = setting(
        1, "Micro-batches per step on each core.", (1, 100_000)
    )
    learning_rate: float = setting(0.0001, "Peak learning rate.", (0.0, 10.0))
    warmup_steps: int = setting(
        10_000, "Steps of linear warm-up to the peak learning rate.", (0, LONGEST_RUN), "steps"
    )
    schedule: Literal["linear", "cosine", "wsd", "google"] = _in_step(
        "linear",
        "Learning rate after the warm-up. linear, cosine: to zero; wsd: constant, then decay;"
        " google: as in BERT's code, linear from step 0 on.",
    )
    decay_fraction: float = _in_step(
        0.1,
        "Fraction of the steps in the final decay phase (wsd).",
        (0.0, 1.0),
        only_with="training.schedule=wsd",
    )
    optimizer: Literal["adamw", "muon"] = _in_step(
        "adamw",
        "Optimizer. muon: Muon for the layers' matrices, AdamW for the rest, with AdamW's learning"
        " rate and decay; its work is divided over the devices.",
        change="fixed",
    )
    update_rule: Literal["adamw", "google"] = _in_step(
        "adamw", "Variant of AdamW. google: no bias correction, as in BERT's and BigBird's code."
    )
    weight_decay: float = _in_step(
        0.01, "Decoupled weight decay; not for biases and layer norms.", (0.0, 10.0)
    )
    adam_beta2: float = _in_step(0.999, "Decay rate of AdamW's second moment.", low=0.0, below=1.0)
    adam_epsilon: float = _in_step(1e-06, "Epsilon of AdamW.", above=0.0, high=1.0)
    clip_norm: float = _in_step(
        1.0, "Maximum global norm of the gradients; 0 disables clipping.", (0.0, 1e9)
    )
    dtype: Literal["bfloat16", "float32"] = _in_step(
        "bfloat16", "Compute dtype; parameters stay in float32."
    )
    masked_lm_prob: float | None = setting(
        None,
        "Masking rate at the first step, for dynamic masks; evaluation uses the data set's.",
        above=0.0,
        below=1.0,
        only_with="make_data.masking=dynamic",
        none="the data set's, at every step",
    )
    final_masked_lm_prob: float | None = setting(
        None,
        "Masking rate at the last step; the rate changes linearly from training.masked_lm_prob.",
        above=0.0,
        below=1.0,
        none="training.masked_lm_prob, at every step",
    )
    gradient_checkpointing: bool = _in_step(
        False, "Recomputation of each layer in the backward pass: less memory, more time."
    )
    seed: int = _in_step(
        12_345, "Seed for weight initialization and dropout.", (-(2**63), INT64_MAX), change="fixed"
    )
    log_every_steps: int = _logged(
        100, "Steps between log entries in metrics.jsonl.", _STEPS, "steps"
    )
    eval_every_steps: int = _evaluated(
        10_000, "Steps between evaluations, with --mode train_and_eval.", _STEPS, "steps"
    )
    eval_max_batches: int | None = _evaluated(
        None,
        "Maximum number of batches per evaluation, 16,384 tokens each.",
        (1, 1_000_000_000),
        "batches",
        none="all held-out records",
    )
    stall_minutes: float = _logged(
        10.0,
        "Abort if no step completes for this many minutes; 0 disables the watchdog.",
        (0.0, 1e6),
        "minutes",
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointsConfig:
    """Settings for saving: by time against preemption, by step for keeps."""

    save_every_minutes: float = setting(
        10.0, "Minutes between checkpoints; 0 disables it.", (0.0, 1e6), "minutes", by=_PLAN
    )
    save_every_steps: int = setting(
        5000, "Steps between checkpoints; 0 disables it.", (0, LONGEST_RUN), "steps"
    )
    keep_last: int = setting(5, "Newest checkpoints to keep.", (1, 100_000), "checkpoints")
    keep_every_steps: int = setting(
        100_000,
        "Checkpoints at multiples of this are kept; 0 disables it.",
        (0, LONGEST_RUN),
        "steps",
    )


@dataclass(frozen=True, kw_only=True)
class TpuConfig:
    """Settings of the machine that trains."""

    num_cores: int = _in_step(
        8, "Cores over which the sequences of a step are divided.", (1, 4096), "cores"
    )
    name: str = setting(
        "local", "Name of the TPU; local: this TPU VM's own.", needs_flag="use_tpu", filled=True
    )
    zone: str | None = setting(None, "Zone of the TPU.", none="the VM's own", filled=True)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; `MODEL_DIR/config.yaml` states them, with the facts of its data."""

    tokenize: TokenizeConfig = field(
        default=TokenizeConfig(), metadata={"by": ("tokenize",), "change": "free"}
    )
    make_data: MakeDataConfig = field(
        default=MakeDataConfig(), metadata={"by": ("make-data",), "change": "free"}
    )
    model: ModelConfig = field(default=ModelConfig(), metadata={"by": _ALL})
    data: DataConfig = field(default=DataConfig(), metadata={"by": _RUN})
    training: TrainingConfig = field(
        default=TrainingConfig(), metadata={"by": _ALL, "change": "logged"}
    )
    checkpoints: CheckpointsConfig = field(
        default=CheckpointsConfig(), metadata={"by": _RUN, "change": "free"}
    )
    tpu: TpuConfig = field(default=TpuConfig(), metadata={"by": _RUN, "change": "free"})


OPTIONS: dict[str, Setting] = settings_of(Config)


def used_by(command: str) -> tuple[str, ...]:
    """List the settings that have an effect in a command."""
    return tuple(key for key, option in OPTIONS.items() if command in option.by)
