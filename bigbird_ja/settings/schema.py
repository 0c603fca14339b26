"""Every setting, declared once: type, default, range, choices, unit and meaning.

A new setting is one field here. Flags, validation, `--help`, docs/settings.md,
`bigbird-ja config` and the echo follow from it; `options.Option` says what a declaration can hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bigbird_ja.settings.option import INT64_MAX, LONGEST_RUN, Option, option, options_of

_STEPS = LONGEST_RUN
_BIGBIRD = "model.architecture=bigbird"
_MODERNBERT = "model.architecture=modernbert"
_IN_BLOCKS = f"{_BIGBIRD} & model.attention_type=block_sparse|simulated_sparse"


@dataclass
class TokenizeConfig:
    """How the SentencePiece model is trained."""

    vocab_size: int = option(
        32000, "Pieces of the vocabulary, special ones included.", unit="pieces",
        fixed_by_data=True, low=16, high=10_000_000,
    )  # fmt: skip
    model_type: str = option("unigram", "Kind of SentencePiece model.", choices=("unigram", "bpe"))
    character_coverage: float = option(
        0.9995, "Share of the text's characters that get a piece of their own.", low=0.98, high=1.0,
    )  # fmt: skip
    max_sentence_length: int = option(
        16384, "Longest line to train on; longer ones are split, never dropped.", unit="bytes",
        low=16, high=2**31 - 1,
    )  # fmt: skip
    max_sentences: int = option(
        2_000_000, "Lines to train on, drawn from the whole corpus; 0 is all.", unit="lines", low=0,
        high=_STEPS,
    )  # fmt: skip


@dataclass
class MakeDataConfig:
    """How records are made; in a run, how those of its data set were made."""

    seq_length: int = option(
        4096, "Length of a sequence, [CLS] and [SEP] included.", unit="tokens", fixed_by_data=True,
        low=8, high=1_000_000,
    )  # fmt: skip
    masking: str = option(
        "dynamic", "dynamic: targets are drawn while training, anew in each epoch; static: they are"
        " in the records.", choices=("dynamic", "static"), fixed_by_data=True,
    )  # fmt: skip
    dupe_factor: int = option(
        10, "Copies of each sequence, each with other masks.", unit="copies", low=1, high=1000,
        only_with="make_data.masking=static",
    )  # fmt: skip
    max_predictions_per_seq: int | None = option(
        None, "Most tokens to predict in a sequence.", unit="tokens", low=1, high=1_000_000,
        fixed_by_data=True, none="what seq_length and masked_lm_prob need",
    )  # fmt: skip
    masked_lm_prob: float = option(
        0.15, "Share of the tokens to predict.", fixed_by_data=True, low=0.0001, high=0.9,
    )  # fmt: skip
    mask_unit: str = option(
        "whole_word", "What is masked together: single pieces, words, or runs of words.",
        choices=("subword", "whole_word", "span"), fixed_by_data=True,
    )  # fmt: skip
    word_boundaries: str = option(
        "script", "Where words start: at changes of script, or by MeCab with unidic-lite (extra"
        " `words`).", choices=("script", "mecab"),
    )  # fmt: skip
    nsp: bool = option(
        False, "Pairs of segments (A and B), for next-sentence prediction.", fixed_by_data=True,
    )  # fmt: skip
    eval_fraction: float = option(
        0.01, "Share of the documents held out for evaluation.", low=0.0, high=0.5,
    )  # fmt: skip
    num_shards: int = option(
        0, "Train shards; 0 chooses by size, a multiple of 32.", unit="files", low=0, high=100_000,
    )  # fmt: skip
    seed: int = option(
        12345, "Of shuffling, held-out documents and static masks.", low=-(2**63), high=2**64 - 1,
    )  # fmt: skip


@dataclass
class ModelConfig:
    """The encoder: BigBird (Zaheer et al. 2020, arXiv:2007.14062), post-norm like BERT, or
    ModernBERT (Warner et al. 2024, arXiv:2412.13663)."""

    architecture: str = option(
        "bigbird", "Shape of the encoder. modernbert: pre-norm, rotary positions, gated MLPs, local"
        " and global layers, by default with its exact gelu, layer norms (1e-5) and no dropout.",
        choices=("bigbird", "modernbert"),
    )  # fmt: skip
    vocab_size: int | None = option(
        None, "Rows of the embedding table.", unit="pieces", low=1, high=10_000_000,
        none="from the data set",
    )  # fmt: skip
    hidden_size: int = option(768, "Width of the encoder.", low=1, high=65536)
    num_layers: int = option(12, "Layers of the encoder.", unit="layers", low=1, high=1000)
    num_attention_heads: int = option(
        12, "Attention heads of a layer; they divide hidden_size.", unit="heads", low=1, high=1024,
    )  # fmt: skip
    intermediate_size: int = option(
        3072, "Width inside a layer's feed-forward part.", low=1, high=1_000_000,
    )  # fmt: skip
    hidden_act: str = option(
        "gelu_new", "Activation; gelu_new is the tanh form that Google's BigBird has.",
        choices=("gelu_new", "gelu", "relu"),
    )  # fmt: skip
    max_position_embeddings: int | None = option(
        None, "Rows of the position table: the longest sequence that the model takes.",
        unit="tokens", low=1, high=10_000_000, none="the data's seq_length",
    )  # fmt: skip
    hidden_dropout_prob: float = option(
        0.1, "Dropout of hidden states; block-sparse attention weights get none.", low=0.0,
        high=0.9,
    )  # fmt: skip
    initializer_range: float = option(
        0.02, "Standard deviation of the truncated normal that weights start from.", low=0.0,
        high=10.0,
    )  # fmt: skip
    initializer: str = option(
        "normal", "subspaces: every head sees one neighbour from the first step (to learn in"
        " minutes).", choices=("normal", "subspaces"), only_with=_BIGBIRD,
    )  # fmt: skip
    layer_norm_eps: float = option(
        1e-12, "Added to the variance in layer norms.", low=0.0, high=1.0,
    )  # fmt: skip
    attention_type: str = option(
        "block_sparse", "Block-sparse, full, or full under the sparse mask (for comparisons).",
        choices=("block_sparse", "original_full", "simulated_sparse"), only_with=_BIGBIRD,
    )  # fmt: skip
    block_size: int = option(
        64, "Tokens of an attention block.", unit="tokens", low=1, high=4096, only_with=_IN_BLOCKS,
    )  # fmt: skip
    num_random_blocks: int = option(
        3, "Random blocks that a query block sees (`rolled` rounds up to tiles of two).",
        unit="blocks", low=0, high=64, only_with=_IN_BLOCKS,
    )  # fmt: skip
    random_pattern: str = option(
        "rolled", "rolled: whole tiles, shifted alike for all rows of a head; independent: blocks"
        " drawn for each row and head.", choices=("rolled", "independent"), only_with=_IN_BLOCKS,
    )  # fmt: skip
    pattern_seed: int = option(
        0, "Of the random blocks, which are drawn once and stay.", low=0, high=2**32 - 1,
        only_with=_IN_BLOCKS,
    )  # fmt: skip
    attention_implementation: str = option(
        "auto", "How attention is computed. kernel: in one kernel each way, without scores in"
        " memory; needs the engine pjrt and a newer TPU. auto: where it is shown cheaper (v5e,"
        " v6e).", choices=("auto", "xla", "kernel"), changeable=True,
    )  # fmt: skip
    attend_across_documents: bool = option(
        True, "Documents packed into one sequence see each other.",
    )  # fmt: skip
    local_attention: int = option(
        128, "Window of a local layer: its tokens see half as many on each side.", unit="tokens",
        low=2, high=1_000_000, only_with=_MODERNBERT,
    )  # fmt: skip
    global_attn_every_n_layers: int = option(
        3, "Layers 0, n, 2n, ... see the whole sequence; the others are local.", unit="layers",
        low=1, high=1000, only_with=_MODERNBERT,
    )  # fmt: skip
    global_rope_theta: float = option(
        160_000.0, "Base of the rotary positions' wavelengths in global layers; 160,000 holds to"
        " 8,192 tokens.", low=1.0, high=1e12, only_with=_MODERNBERT,
    )  # fmt: skip
    local_rope_theta: float = option(
        10_000.0, "The same in local layers.", low=1.0, high=1e12, only_with=_MODERNBERT,
    )  # fmt: skip


@dataclass
class DataConfig:
    """How a data set is read."""

    mask_unit: str | None = option(
        None, "What dynamic masks take together; training may choose another than the data set's.",
        choices=("subword", "whole_word", "span"), none="from the data set",
    )  # fmt: skip
    shuffle_window: int = option(
        8, "Shards that are mixed with each other.", unit="shards", low=1, high=100_000,
    )  # fmt: skip
    seed: int = option(
        12345, "Of the order of records and of dynamic masks.", low=-(2**63), high=2**64 - 1,
    )  # fmt: skip


@dataclass
class TrainingConfig:
    """The optimiser and its schedule. One optimiser step is one `global_step`."""

    num_train_steps: int = option(
        1_400_000, "Steps in all; a larger number continues a finished run.", unit="steps", low=1,
        high=_STEPS, changeable=True,
    )  # fmt: skip
    global_batch_size: int = option(
        16, "Sequences of a step, over all cores and micro-batches.", unit="sequences", low=1,
        high=1_000_000,
    )  # fmt: skip
    gradient_accumulation_steps: int = option(
        1, "Micro-batches of a step on each core.", low=1, high=100_000,
    )  # fmt: skip
    learning_rate: float = option(1e-4, "Peak of the learning rate.", low=0.0, high=10.0)
    warmup_steps: int = option(
        10_000, "Steps in which the learning rate rises to its peak.", unit="steps", low=0,
        high=_STEPS,
    )  # fmt: skip
    schedule: str = option(
        "linear", "After the warm-up: linear or cosine to zero; wsd: stable, with a decay at the"
        " end; google: as in BERT's code, linear from step 0 on.",
        choices=("linear", "cosine", "wsd", "google"),
    )  # fmt: skip
    decay_fraction: float = option(
        0.1, "Last share of the steps, in which the rate decays.", low=0.0, high=1.0,
        only_with="training.schedule=wsd",
    )  # fmt: skip
    optimizer: str = option(
        "adamw", "muon: Muon for the layers' matrices, AdamW for all else, at the same rate and"
        " decay, which are AdamW's; several devices share its work.",
        choices=("adamw", "muon"),
    )  # fmt: skip
    update_rule: str = option(
        "adamw", "Of AdamW. adamw: with bias correction; google: without, as in BERT's and"
        " BigBird's code.",
        choices=("adamw", "google"),
    )  # fmt: skip
    weight_decay: float = option(
        0.01, "Decoupled decay (AdamW); not of biases and layer norms.", low=0.0, high=10.0,
    )  # fmt: skip
    adam_beta2: float = option(
        0.999, "Decay of the running mean of squared gradients.", low=0.0, below=1.0,
    )  # fmt: skip
    adam_epsilon: float = option(1e-6, "Added to the root of the mean square.", above=0.0, high=1.0)
    clip_norm: float = option(
        1.0, "Largest global norm of the gradients; 0 is off.", low=0.0, high=1e9,
    )  # fmt: skip
    dtype: str = option(
        "bfloat16", "Of activations; master weights are float32.", choices=("bfloat16", "float32"),
    )  # fmt: skip
    masked_lm_prob: float | None = option(
        None, "Share of ordinary tokens to predict at the first step, for dynamic masks; evaluation"
        " keeps the data set's.", above=0.0, below=1.0, none="the data set's, at every step",
        only_with="make_data.masking=dynamic",
    )  # fmt: skip
    final_masked_lm_prob: float | None = option(
        None, "Share that training.masked_lm_prob goes to in a line.", above=0.0, below=1.0,
        none="training.masked_lm_prob, at every step",
    )  # fmt: skip
    gradient_checkpointing: bool = option(
        False, "Computes each layer again in the backward pass: less memory, more time.",
    )  # fmt: skip
    seed: int = option(12345, "Of initial weights and dropout.", low=-(2**63), high=INT64_MAX)
    log_every_steps: int = option(
        100, "Between two lines of metrics.jsonl.", unit="steps", low=1, high=_STEPS,
        changeable=True,
    )  # fmt: skip
    eval_every_steps: int = option(
        10_000, "Between two evaluations, with --mode train_and_eval.", unit="steps", low=1,
        high=_STEPS, changeable=True, needs_flag="mode=train_and_eval",
    )  # fmt: skip
    eval_max_batches: int | None = option(
        None, "Longest evaluation in training; a batch has 16,384 tokens.", unit="batches", low=1,
        high=10**9, none="all held-out records", changeable=True, needs_flag="mode=train_and_eval",
    )  # fmt: skip
    stall_minutes: float = option(
        10.0, "The watchdog ends a run that finishes no step for so long; 0 is off.",
        unit="minutes", low=0.0, high=1e6, changeable=True,
    )  # fmt: skip


@dataclass
class CheckpointsConfig:
    """Two policies of saving: by time against preemption, by step for keeps."""

    save_every_minutes: float = option(
        10.0, "Time between two checkpoints; 0 is off.", unit="minutes", low=0.0, high=1e6,
        changeable=True,
    )  # fmt: skip
    save_every_steps: int = option(
        5_000, "Steps between two checkpoints; 0 is off.", unit="steps", low=0, high=_STEPS,
        changeable=True,
    )  # fmt: skip
    keep_last: int = option(
        5, "Newest checkpoints to keep.", unit="checkpoints", low=1, high=100_000, changeable=True,
    )  # fmt: skip
    keep_every_steps: int = option(
        100_000, "Checkpoints at multiples of this are never removed; 0 is off.", unit="steps",
        low=0, high=_STEPS, changeable=True,
    )  # fmt: skip


@dataclass
class TpuConfig:
    """The machine that trains."""

    num_cores: int = option(
        8, "Cores over which a step's sequences are divided.", unit="cores", low=1, high=4096,
        changeable=True,
    )  # fmt: skip
    name: str = option(
        "local", "Name of the TPU; local: the one of this TPU VM.", changeable=True,
        needs_flag="use_tpu", filled=True,
    )  # fmt: skip
    zone: str | None = option(
        None, "Zone of the TPU.", none="the VM's own", changeable=True, filled=True,
    )  # fmt: skip


@dataclass
class Config:
    """Everything that a run depends on; written to `MODEL_DIR/config.yaml`."""

    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    make_data: MakeDataConfig = field(default_factory=MakeDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    tpu: TpuConfig = field(default_factory=TpuConfig)


OPTIONS: dict[str, Option] = options_of(Config)
SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(option.section for option in OPTIONS.values()))

# Settings of earlier versions: the value at which a file may still hold each, and what serves
# instead.
REMOVED: dict[str, tuple[Any, str]] = {
    "training.first_seq_length": (
        None,
        "train at that length, then at the whole one with --init_from RUN",
    ),
    "training.first_seq_length_steps": (None, "it went with training.first_seq_length"),
    "training.optimizer_sharding": (False, "training.optimizer=muon divides its work by itself"),
    "training.gradient_sum_dtype": ("float32", "gradients are summed in float32"),
}

# What training depends on and only making data decides: of a run, its data set's manifest says it.
FIXED_BY_DATA: tuple[str, ...] = tuple(key for key, o in OPTIONS.items() if o.fixed_by_data)


def _all_but(section: str, *unused: str) -> tuple[str, ...]:
    """The keys of a section but for these; one that is declared later is among them."""
    keys = [key for key, option in OPTIONS.items() if option.section == section]
    return tuple(key for key in keys if key.partition(".")[2] not in unused)


# `make-data`: what a length must divide by, too.
MAKING_SETTINGS: tuple[str, ...] = (
    *_all_but("make_data"),
    *("model.attention_type", "model.block_size", "model.num_random_blocks"),
    "model.random_pattern",
)

RUN_SETTINGS: tuple[str, ...] = ("model", "data", "training", "checkpoints", "tpu", *FIXED_BY_DATA)

_FIRST_VALUES = ("initializer", "initializer_range")
# How a run reports, evaluates and is watched: no part of a step.
_ATTENDANCE = (
    "log_every_steps", "eval_every_steps", "eval_max_batches", "stall_minutes",
)  # fmt: skip

# `preflight`: what the compiled step is made of.
STEP_SETTINGS: tuple[str, ...] = (
    *_all_but("model", *_FIRST_VALUES),
    *_all_but("training", *_ATTENDANCE),
    "tpu.num_cores",
    *(key for key in FIXED_BY_DATA if key != "make_data.mask_unit"),
)

# `plan`: what operations, memory on disk, steps and their number follow from. How long a step takes
# is measured by `preflight`, or assumed.
PLAN_SETTINGS: tuple[str, ...] = (
    *_all_but(
        "model", *_FIRST_VALUES, "hidden_act", "hidden_dropout_prob", "layer_norm_eps",
        "attention_implementation", "attend_across_documents", "global_rope_theta",
        "local_rope_theta",
    ),
    *_all_but(
        "training", *_ATTENDANCE, "schedule", "decay_fraction", "update_rule",
        "weight_decay", "adam_beta2", "adam_epsilon", "clip_norm", "dtype",
        "gradient_checkpointing", "seed",
    ),
    *_all_but("checkpoints", "save_every_steps"),
    *FIXED_BY_DATA,
)  # fmt: skip
