"""Every setting of a run: type, default, range or choices, unit and meaning.

A new setting is one field here. Flags, validation, `--help`, the site's page, `bigbird-ja config`,
the echo, its commands and the changes that a resumed run accepts follow from it; `option.Setting`
lists the arguments of `setting`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from bigbird_ja.settings.option import INT64_MAX, MAX_STEPS, Setting, setting, settings_of

_BIGBIRD = {"model.architecture": ["bigbird"]}
_MODERNBERT = {"model.architecture": ["modernbert"]}
_IN_BLOCKS = {**_BIGBIRD, "model.attention_type": ["block_sparse", "simulated_sparse"]}
_DYNAMIC = {"make_data.masking": ["dynamic"]}
_STATIC = {"make_data.masking": ["static"]}
_WSD = {"training.schedule": ["wsd"]}

# Commands, for `by`: settings that only a run uses, settings of the compiled step (`preflight`),
# and those that operations, steps and the work lost to preemptions depend on (`plan`).
_RUN = ("pretrain", "launch")
_STEP = (*_RUN, "preflight")
_PLAN = (*_RUN, "plan")
_ALL = (*_RUN, "preflight", "plan")
_MAKING = (*_ALL, "make-data")

_fact = partial(setting, by=("make-data", *_ALL), change="fixed")
_in_step = partial(setting, by=_STEP)
_in_blocks = partial(setting, by=_MAKING, only_with=_IN_BLOCKS)
_rotary = partial(setting, by=_STEP, only_with=_MODERNBERT)
_windowed = partial(setting, only_with=_MODERNBERT)
_logged = partial(setting, by=_RUN, change="free")
_evaluated = partial(_logged, needs_flag="mode=train_and_eval")

SEEDS = (-(2**63), 2**64 - 1)

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SeqLength = Annotated[int, Meta(ge=8, le=1_000_000, extra={"unit": "tokens"})]
Masking = Literal["dynamic", "static"]
Predictions = Annotated[int, Meta(ge=1, le=1_000_000, extra={"unit": "tokens"})]
MaskRate = Annotated[float, Meta(ge=0.0001, le=0.9)]
MaskUnit = Literal["subword", "whole_word", "span"]

Steps = Annotated[int, Meta(ge=1, le=MAX_STEPS, extra={"unit": "steps"})]
StepsOrZero = Annotated[int, Meta(ge=0, le=MAX_STEPS, extra={"unit": "steps"})]
Minutes = Annotated[float, Meta(ge=0.0, le=1e6, extra={"unit": "minutes"})]
Entries = Annotated[int, Meta(ge=1, le=10_000_000, extra={"unit": "entries"})]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000, extra={"unit": "tokens"})]
Batches = Annotated[int, Meta(ge=1, le=1_000_000_000, extra={"unit": "batches"})]
Factor = Annotated[float, Meta(ge=0.0, le=10.0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Dropout = Annotated[float, Meta(ge=0.0, le=0.9)]
Theta = Annotated[float, Meta(ge=1.0, le=1e12)]
Rate = Annotated[float, Meta(ge=0.0001, le=0.9999)]


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """Settings for training the SentencePiece model."""

    vocab_size: int = _fact(
        32_000,
        "Vocabulary size, special tokens included.",
        (16, 10_000_000),
        by=("tokenize", *_ALL),
    )
    model_type: Literal["unigram", "bpe"] = setting("unigram", "Type of SentencePiece model.")
    character_coverage: float = setting(
        0.9995, "Share of the text's characters that get an entry of their own.", (0.98, 1.0)
    )
    max_sentence_length: int = setting(
        16_384, "Longest line to train on; longer ones are split.", (16, 2**31 - 1), "bytes"
    )
    max_sentences: int = setting(
        2_000_000, "Lines drawn from the whole corpus; 0: all.", (0, MAX_STEPS), "lines"
    )


@dataclass(frozen=True, kw_only=True)
class MakeDataConfig:
    """Settings for making a data set."""

    seq_length: SeqLength = _fact(4096, "Sequence length, [CLS] and [SEP] included.")
    masking: Masking = _fact(
        "dynamic",
        "Masks. dynamic: drawn in training, new in each epoch; static: stored in the records.",
    )
    dupe_factor: int = setting(10, "Copies, each masked anew.", (1, 1000), only_with=_STATIC)
    max_predictions_per_seq: Predictions | None = _fact(
        None,
        "Maximum number of predicted tokens.",
        none="as many as seq_length and masked_lm_prob need",
    )
    masked_lm_prob: MaskRate = _fact(0.15, "Share of the tokens to predict.")
    mask_unit: MaskUnit = _fact(
        "whole_word",
        "Unit that is masked as a whole: a token, a word, or a span of words.",
        by=("make-data", *_PLAN),
    )
    word_boundaries: Literal["script", "mecab"] = setting(
        "script", "Word boundaries: changes of script, or MeCab with unidic-lite (extra `words`)."
    )
    nsp: bool = _fact(False, "Pairs of segments (A and B) for next-sentence prediction.")
    eval_fraction: float = _fact(0.01, "Share of documents held out for evaluation.", (0.0, 0.5))
    num_shards: int = setting(0, "Train shards; 0: a multiple of 32, by size.", (0, 100_000))
    seed: int = setting(12_345, "Seed for shuffling, held-out documents and static masks.", SEEDS)


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
    vocab_size: Entries | None = setting(None, "Rows of the embeddings.", none="from the data set")
    hidden_size: int = setting(768, "Width of the encoder.", (1, 65_536))
    num_layers: int = setting(12, "Layers of the encoder.", (1, 1000), "layers")
    num_attention_heads: int = setting(12, "Attention heads of a layer.", (1, 1024), "heads")
    intermediate_size: int = setting(3072, "Width of the feed-forward networks.", (1, 1_000_000))
    hidden_act: Literal["gelu_new", "gelu", "relu"] = _in_step(
        "gelu_new", "Activation; gelu_new: tanh approximation, as in BigBird.", modernbert="gelu"
    )
    max_position_embeddings: Tokens | None = _in_step(
        None, "Rows of the position table: the longest input.", none="the data's seq_length"
    )
    hidden_dropout_prob: Dropout = _in_step(
        0.1, "Dropout of hidden states; block-sparse attention has none.", modernbert=0.0
    )
    initializer_range: Factor = setting(
        0.02, "Standard deviation of the initial weights (truncated normal).", by=_RUN
    )
    initializer: Literal["normal", "subspaces"] = setting(
        "normal",
        "Initialization. subspaces (BigBird only): each head starts by attending to one neighbor.",
        modernbert="normal",
        by=_RUN,
    )
    layer_norm_eps: Fraction = _in_step(1e-12, "Epsilon of layer norms.", modernbert=1e-5)
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
    pattern_seed: int = setting(0, "Seed for random blocks.", (0, 2**32 - 1), only_with=_IN_BLOCKS)
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
    global_rope_theta: Theta = _rotary(
        160_000.0, "Base of rotary positions in global layers; 160,000 for 8,192 tokens."
    )
    local_rope_theta: Theta = _rotary(10_000.0, "Base of rotary positions in local layers.")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Settings for reading a data set."""

    mask_unit: MaskUnit | None = setting(
        None, "Unit of dynamic masks, if not the data set's.", none="from the data set"
    )
    shuffle_window: int = setting(8, "Shards that are shuffled together.", (1, 100_000), "shards")
    seed: int = setting(12_345, "Seed for shuffling and dynamic masking.", SEEDS)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the optimizer and its schedule. One optimizer step is one `global_step`."""

    num_train_steps: Steps = setting(
        1_400_000, "Total steps; raise it to continue a finished run.", change="free"
    )
    global_batch_size: int = setting(
        16, "Sequences per step, all cores and micro-batches together.", (1, 1_000_000), "sequences"
    )
    gradient_accumulation_steps: int = setting(1, "Micro-batches per step and core.", (1, 100_000))
    learning_rate: Factor = setting(0.0001, "Peak learning rate.")
    warmup_steps: StepsOrZero = setting(10_000, "Steps of linear warm-up.")
    schedule: Literal["linear", "cosine", "wsd", "google"] = _in_step(
        "linear",
        "Learning rate after the warm-up. linear, cosine: to zero; wsd: constant, then decay;"
        " google: as in BERT's code, linear from step 0 on.",
    )
    decay_fraction: Fraction = _in_step(
        0.1, "Fraction of the steps in the final decay phase.", only_with=_WSD
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
    weight_decay: Factor = _in_step(0.01, "Decoupled weight decay; not for biases and layer norms.")
    adam_beta2: float = _in_step(0.999, "Decay rate of AdamW's second moment.", (0.0, 0.999999))
    adam_epsilon: float = _in_step(1e-06, "Epsilon of AdamW.", (1e-30, 1.0))
    clip_norm: float = _in_step(1.0, "Maximum global gradient norm; 0 disables it.", (0.0, 1e9))
    dtype: Literal["bfloat16", "float32"] = _in_step(
        "bfloat16", "Compute dtype; parameters stay in float32."
    )
    masked_lm_prob: Rate | None = setting(
        None,
        "Masking rate at the first step, for dynamic masks; evaluation uses the data set's.",
        only_with=_DYNAMIC,
        none="the data set's, at every step",
    )
    final_masked_lm_prob: Rate | None = setting(
        None,
        "Masking rate at the last step; the rate changes linearly from training.masked_lm_prob.",
        none="training.masked_lm_prob, at every step",
    )
    gradient_checkpointing: bool = _in_step(
        False, "Recomputation of each layer in the backward pass: less memory, more time."
    )
    seed: int = _in_step(
        12_345, "Seed for weight initialization and dropout.", (-(2**63), INT64_MAX), change="fixed"
    )
    log_every_steps: Steps = _logged(100, "Steps between log entries in metrics.jsonl.")
    eval_every_steps: Steps = _evaluated(10_000, "Steps between evaluations.")
    eval_max_batches: Batches | None = _evaluated(
        None, "Maximum number of batches of 16,384 tokens.", none="all held-out records"
    )
    stall_minutes: Minutes = _logged(
        10.0, "Abort if no step completes for this many minutes; 0 disables the watchdog."
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointsConfig:
    """Settings for saving: by time against preemption, by step for keeps."""

    save_every_minutes: Minutes = setting(
        10.0, "Minutes between checkpoints; 0 disables it.", by=_PLAN
    )
    save_every_steps: StepsOrZero = setting(5000, "Steps between checkpoints; 0 disables it.")
    keep_last: int = setting(5, "Newest checkpoints to keep.", (1, 100_000), "checkpoints")
    keep_every_steps: StepsOrZero = setting(
        100_000, "Interval of checkpoints that stay; 0 disables it."
    )


@dataclass(frozen=True, kw_only=True)
class TpuConfig:
    """Settings of the machine that trains."""

    num_cores: int = _in_step(8, "Cores that share a step's sequences.", (1, 4096), "cores")
    name: str = setting(
        "local", "Name of the TPU; local: this TPU VM's own.", needs_flag="use_tpu", filled=True
    )
    zone: str | None = setting(None, "Zone of the TPU.", none="the VM's own", filled=True)


def _section(default: Any, by: tuple[str, ...], change: str) -> Any:
    """Declare a section: its defaults, and what its settings have in common."""
    return field(default=default, metadata={"by": by, "change": change})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a run; `MODEL_DIR/config.yaml` states them, with the facts of its data."""

    tokenize: TokenizeConfig = _section(TokenizeConfig(), ("tokenize",), "free")
    make_data: MakeDataConfig = _section(MakeDataConfig(), ("make-data",), "free")
    model: ModelConfig = _section(ModelConfig(), _ALL, "fixed")
    data: DataConfig = _section(DataConfig(), _RUN, "fixed")
    training: TrainingConfig = _section(TrainingConfig(), _ALL, "logged")
    checkpoints: CheckpointsConfig = _section(CheckpointsConfig(), _RUN, "free")
    tpu: TpuConfig = _section(TpuConfig(), _RUN, "free")


OPTIONS: dict[str, Setting] = settings_of(Config)


def used_by(command: str) -> tuple[str, ...]:
    """List the settings that have an effect in a command."""
    return tuple(key for key, option in OPTIONS.items() if command in option.by)
