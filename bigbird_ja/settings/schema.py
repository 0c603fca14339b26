"""Declarations of all settings: type, default, range or choices, unit and meaning.

To add a setting, add one field here. Flags, validation, `--help`, the documentation and
`bigbird-ja config` are derived from the field.

A section whose settings depend on a choice is a union of classes, such as `Model`. Each class
declares its choices as a `Literal`. So a setting without an effect is an unknown key of the chosen
class, and each class can declare its own default of a setting.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

INT64_MAX = 2**63 - 1
# Maximum number of steps. No run needs more, and float64 represents the number exactly.
MAX_STEPS = 10**12

# Groups of commands for the parameter `by` of `about`. The commands in `_RUN` train. `preflight`
# compiles a step. `plan` uses the number of operations, the steps, and the checkpoint interval.
_RUN = ("pretrain", "launch")
_STEP = (*_RUN, "preflight")
_PLAN = (*_RUN, "plan")
_ALL = (*_RUN, "preflight", "plan")
_MAKING = (*_ALL, "make-data")


def about(
    meaning: str = "",
    span: tuple[float, float] | None = None,
    unit: str = "",
    by: tuple[str, ...] = (),
    change: str = "",
    none: str = "",
) -> Meta:
    """Return the description of a setting, or of all settings of a section.

    Args:
        meaning: noun phrase for `--help`.
        span: minimum and maximum.
        unit: unit of the value.
        by: commands in which the setting has an effect. The section's `by` is the default.
        change: changes that a resumed run accepts. The section's `change` is the default.
            "free": all changes. "logged": changes by a parameter, which are logged as events.
            "fixed": none.
        none: meaning of None, if None is allowed.
    """
    extra = {"unit": unit, "by": by, "change": change, "none": none}
    given = {key: value for key, value in extra.items() if value}
    low, high = span or (None, None)
    return Meta(description=meaning or None, ge=low, le=high, extra=given or None)


def fact(
    meaning: str,
    span: tuple[float, float] | None = None,
    *,
    by: tuple[str, ...] = _MAKING,
    none: str = "",
) -> Meta:
    """Return the description of a setting whose value becomes a fixed property of the data set."""
    return about(meaning, span, by=by, change="fixed", none=none)


Positive = Annotated[int, about(span=(1, 2**31 - 1))]
Id = Annotated[int, about(span=(0, 2**31 - 1))]
Seed = Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)]
SeqLength = Annotated[int, about(span=(8, 1_000_000), unit="tokens")]
Masking = Literal["dynamic", "static"]
Predictions = Annotated[int, about(span=(1, 1_000_000), unit="tokens")]
MaskRate = Annotated[float, about(span=(0.0001, 0.9))]
MaskUnit = Literal["subword", "whole_word", "span"]

Steps = Annotated[int, about(span=(1, MAX_STEPS), unit="steps")]
StepsOrZero = Annotated[int, about(span=(0, MAX_STEPS), unit="steps")]
Minutes = Annotated[float, about(span=(0.0, 1e6), unit="minutes")]
Entries = Annotated[int, about(span=(1, 10_000_000), unit="entries")]
Tokens = Annotated[int, about(span=(1, 10_000_000), unit="tokens")]
Batches = Annotated[int, about(span=(1, 1_000_000_000), unit="batches")]
Factor = Annotated[float, about(span=(0.0, 10.0))]
Fraction = Annotated[float, about(span=(0.0, 1.0))]
Dropout = Annotated[float, about(span=(0.0, 0.9))]
Theta = Annotated[float, about(span=(1.0, 1e12))]
Rate = Annotated[float, about(span=(0.0001, 0.9999))]
Text = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=r"^[!-~]*$",
        extra={"pattern": "at most 1024 ASCII characters without spaces"},
    ),
]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of sections of settings."""


class TokenizeConfig(Section, frozen=True, kw_only=True):
    """Settings for training the SentencePiece model."""

    vocab_size: Annotated[
        int,
        fact("Vocabulary size, special tokens included.", (16, 10_000_000), by=("tokenize", *_ALL)),
    ] = 32_000
    model_type: Annotated[Literal["unigram", "bpe"], about("Type of SentencePiece model.")] = (
        "unigram"
    )
    character_coverage: Annotated[
        float, about("Fraction of the text's characters that become tokens.", (0.98, 1.0))
    ] = 0.9995
    max_sentence_length: Annotated[
        int, about("Longest line to train on; longer ones are split.", (16, 2**31 - 1), "bytes")
    ] = 16_384
    max_sentences: Annotated[
        int, about("Lines drawn from the whole corpus; 0: all.", (0, MAX_STEPS), "lines")
    ] = 2_000_000


class MakeDataConfig(Section, frozen=True, kw_only=True):
    """Settings for making a data set."""

    seq_length: Annotated[SeqLength, fact("Sequence length, [CLS] and [SEP] included.")] = 4096
    masking: Annotated[
        Masking,
        fact(
            "Masks. dynamic: drawn in training, new in each epoch; static: stored in the records."
        ),
    ] = "dynamic"
    max_predictions_per_seq: Annotated[
        Predictions | None,
        fact(
            "Maximum number of predicted tokens.",
            none="as many as seq_length and masked_lm_prob need",
        ),
    ] = None
    masked_lm_prob: Annotated[MaskRate, fact("Share of the tokens to predict.")] = 0.15
    mask_unit: Annotated[
        MaskUnit,
        fact(
            "Unit that is masked as a whole: a token, a word, or a span of words.",
            by=("make-data", *_PLAN),
        ),
    ] = "whole_word"
    word_boundaries: Annotated[
        Literal["script", "mecab"],
        about("Word boundaries: changes of script, or MeCab with unidic-lite (extra `words`)."),
    ] = "script"
    nsp: Annotated[bool, fact("Pairs of segments (A and B) for next-sentence prediction.")] = False
    eval_fraction: Annotated[
        float, about("Share of documents held out for evaluation.", (0.0, 0.5))
    ] = 0.01
    num_shards: Annotated[
        int, about("Train shards; 0: a multiple of 32 that fits the data's size.", (0, 100_000))
    ] = 0
    seed: Annotated[Seed, about("Seed for shuffling, held-out documents and static masks.")] = (
        12_345
    )


class DynamicMasks(MakeDataConfig, frozen=True, kw_only=True):
    """Settings for making a data set whose masks are drawn in training."""

    masking: Literal["dynamic"] = "dynamic"


class StaticMasks(MakeDataConfig, frozen=True, kw_only=True):
    """Settings for making a data set whose records contain the masks."""

    masking: Literal["static"] = "static"
    dupe_factor: Annotated[
        int, about("Copies of each sequence, with different masks.", (1, 1000))
    ] = 10


class ModelConfig(Section, frozen=True, kw_only=True):
    """Settings of the encoder.

    The encoder is a BigBird (Zaheer et al. 2020, arXiv:2007.14062), post-norm like BERT, or a
    ModernBERT (Warner et al. 2024, arXiv:2412.13663).
    """

    architecture: Annotated[
        Literal["bigbird", "modernbert"],
        about(
            "Architecture. modernbert: pre-norm, rotary positions, gated MLPs, local and global"
            " layers; by default its exact gelu, layer norms (1e-5) and no dropout."
        ),
    ] = "bigbird"
    vocab_size: Annotated[
        Entries | None, about("Rows of the embeddings.", none="from the data set")
    ] = None
    hidden_size: Annotated[int, about("Width of the encoder.", (1, 65_536))] = 768
    num_layers: Annotated[int, about("Layers of the encoder.", (1, 1000), "layers")] = 12
    num_attention_heads: Annotated[
        int, about("Attention heads of a layer.", (1, 1024), "heads")
    ] = 12
    intermediate_size: Annotated[
        int, about("Width of the feed-forward networks.", (1, 1_000_000))
    ] = 3072
    hidden_act: Annotated[
        Literal["gelu_new", "gelu", "relu"],
        about("Activation; gelu_new: tanh approximation, as in BigBird.", by=_STEP),
    ] = "gelu_new"
    max_position_embeddings: Annotated[
        Tokens | None,
        about(
            "Rows of the position table: the longest input.", by=_STEP, none="the data's seq_length"
        ),
    ] = None
    hidden_dropout_prob: Annotated[
        Dropout, about("Dropout of hidden states; block-sparse attention has none.", by=_STEP)
    ] = 0.1
    initializer_range: Annotated[
        Factor, about("Standard deviation of the initial weights (truncated normal).", by=_RUN)
    ] = 0.02
    initializer: Annotated[
        Literal["normal", "subspaces"],
        about(
            "Initialization. subspaces (BigBird only): each head starts by attending to one"
            " neighbor.",
            by=_RUN,
        ),
    ] = "normal"
    layer_norm_eps: Annotated[Fraction, about("Epsilon of layer norms.", by=_STEP)] = 1e-12
    attention_implementation: Annotated[
        Literal["auto", "xla", "kernel"],
        about(
            "Computation of attention. kernel: Pallas kernels, which store no scores in memory and"
            " require the engine pjrt and TPU v4 or later. auto: kernel on v5e and v6e, else xla.",
            by=_STEP,
            change="free",
        ),
    ] = "auto"
    attend_across_documents: Annotated[
        bool, about("Attention between the documents of a sequence.", by=_STEP)
    ] = True


class AnyBigBirdModel(ModelConfig, frozen=True, kw_only=True):
    """Settings that a BigBird has both with sparse and with full attention."""

    architecture: Literal["bigbird"] = "bigbird"
    attention_type: Annotated[
        Literal["block_sparse", "original_full", "simulated_sparse"],
        about("Block-sparse, full, or full with the sparse mask (for comparisons).", by=_MAKING),
    ] = "block_sparse"


class BigBirdModel(AnyBigBirdModel, frozen=True, kw_only=True):
    """Settings of a BigBird with its sparse attention."""

    attention_type: Literal["block_sparse", "simulated_sparse"] = "block_sparse"
    block_size: Annotated[
        int, about("Tokens per attention block.", (1, 4096), "tokens", by=_MAKING)
    ] = 64
    num_random_blocks: Annotated[
        int,
        about(
            "Random key blocks per query block (`rolled` rounds up to even).",
            (0, 64),
            "blocks",
            by=_MAKING,
        ),
    ] = 3
    random_pattern: Annotated[
        Literal["rolled", "independent"],
        about(
            "Random blocks. rolled: whole tiles, with one shift for all rows of a head;"
            " independent: drawn for each row and head.",
            by=_MAKING,
        ),
    ] = "rolled"
    pattern_seed: Annotated[int, about("Seed for random blocks.", (0, 2**32 - 1))] = 0


class FullBigBirdModel(AnyBigBirdModel, frozen=True, kw_only=True):
    """Settings of a BigBird with full attention, like BERT or RoBERTa."""

    attention_type: Literal["original_full"] = "original_full"


class ModernBertModel(ModelConfig, frozen=True, kw_only=True):
    """Settings of a ModernBERT."""

    architecture: Literal["modernbert"] = "modernbert"
    hidden_act: Literal["gelu_new", "gelu", "relu"] = "gelu"
    hidden_dropout_prob: Dropout = 0.0
    initializer: Literal["normal"] = "normal"
    layer_norm_eps: Fraction = 1e-5
    local_attention: Annotated[
        int, about("Window of a local layer, half on each side.", (2, 1_000_000), "tokens")
    ] = 128
    global_attn_every_n_layers: Annotated[
        int, about("Layers 0, n, 2n, ... attend globally, the others locally.", (1, 1000))
    ] = 3
    global_rope_theta: Annotated[
        Theta,
        about("Base of rotary positions in global layers; 160,000 for 8,192 tokens.", by=_STEP),
    ] = 160_000.0
    local_rope_theta: Annotated[
        Theta, about("Base of rotary positions in local layers.", by=_STEP)
    ] = 10_000.0


Model = BigBirdModel | FullBigBirdModel | ModernBertModel


class DataConfig(Section, frozen=True, kw_only=True):
    """Settings for reading a data set."""

    mask_unit: Annotated[
        MaskUnit | None,
        about("Unit of dynamic masks, if not the data set's.", none="from the data set"),
    ] = None
    shuffle_window: Annotated[
        int, about("Shards that are shuffled together.", (1, 100_000), "shards")
    ] = 8
    seed: Annotated[Seed, about("Seed for shuffling and dynamic masking.")] = 12_345


class TrainingConfig(Section, frozen=True, kw_only=True):
    """Settings of the optimizer and its schedule."""

    num_train_steps: Annotated[
        Steps, about("Total steps; raise it to continue a finished run.", change="free")
    ] = 1_400_000
    global_batch_size: Annotated[
        int,
        about(
            "Sequences per step, all cores and micro-batches together.", (1, 1_000_000), "sequences"
        ),
    ] = 16
    gradient_accumulation_steps: Annotated[
        int, about("Micro-batches per step and core.", (1, 100_000))
    ] = 1
    learning_rate: Annotated[Factor, about("Peak learning rate.")] = 0.0001
    warmup_steps: Annotated[StepsOrZero, about("Steps of linear warm-up.")] = 10_000
    schedule: Annotated[
        Literal["linear", "cosine", "wsd", "google"],
        about(
            "Learning rate after the warm-up. linear, cosine: to zero; wsd: constant, then decay;"
            " google: as in BERT's code, linear from step 0 on.",
            by=_STEP,
        ),
    ] = "linear"
    optimizer: Annotated[
        Literal["adamw", "muon"],
        about(
            "Optimizer. muon: Muon for the layers' matrices, AdamW for the rest, with AdamW's"
            " learning rate and decay; its work is divided over the devices.",
            by=_STEP,
            change="fixed",
        ),
    ] = "adamw"
    update_rule: Annotated[
        Literal["adamw", "google"],
        about(
            "Variant of AdamW. google: no bias correction, as in BERT's and BigBird's code.",
            by=_STEP,
        ),
    ] = "adamw"
    weight_decay: Annotated[
        Factor, about("Decoupled weight decay; not for biases and layer norms.", by=_STEP)
    ] = 0.01
    adam_beta2: Annotated[
        float, about("Decay rate of AdamW's second moment.", (0.0, 0.999999), by=_STEP)
    ] = 0.999
    adam_epsilon: Annotated[float, about("Epsilon of AdamW.", (1e-30, 1.0), by=_STEP)] = 1e-06
    clip_norm: Annotated[
        float, about("Maximum global gradient norm; 0 disables it.", (0.0, 1e9), by=_STEP)
    ] = 1.0
    dtype: Annotated[
        Literal["bfloat16", "float32"],
        about("Compute dtype; parameters stay in float32.", by=_STEP),
    ] = "bfloat16"
    masked_lm_prob: Annotated[
        Rate | None,
        about(
            "Masking rate at the first step, for dynamic masks; evaluation uses the data set's.",
            none="the data set's, at every step",
        ),
    ] = None
    final_masked_lm_prob: Annotated[
        Rate | None,
        about(
            "Masking rate at the last step; the rate changes linearly from"
            " training.masked_lm_prob.",
            none="training.masked_lm_prob, at every step",
        ),
    ] = None
    gradient_checkpointing: Annotated[
        bool,
        about(
            "Recomputation of each layer in the backward pass: less memory, more time.", by=_STEP
        ),
    ] = False
    seed: Annotated[
        Seed, about("Seed for weight initialization and dropout.", by=_STEP, change="fixed")
    ] = 12_345
    log_every_steps: Annotated[
        Steps, about("Steps between log entries in metrics.jsonl.", by=_RUN, change="free")
    ] = 100
    eval_every_steps: Annotated[
        Steps, about("Steps between evaluations (mode train_and_eval).", by=_RUN, change="free")
    ] = 10_000
    eval_max_batches: Annotated[
        Batches | None,
        about(
            "Maximum number of batches of about 16,384 tokens (mode train_and_eval).",
            by=_RUN,
            change="free",
            none="all held-out records",
        ),
    ] = None
    stall_minutes: Annotated[
        Minutes,
        about(
            "Abort if no step completes for this many minutes; 0 disables the watchdog.",
            by=_RUN,
            change="free",
        ),
    ] = 10.0


class SteadyTraining(TrainingConfig, frozen=True, kw_only=True):
    """Settings of the optimizer with a schedule without a separate decay phase."""

    schedule: Literal["linear", "cosine", "google"] = "linear"


class WsdTraining(TrainingConfig, frozen=True, kw_only=True):
    """Settings of the optimizer with the schedule wsd: warm-up, stable, decay."""

    schedule: Literal["wsd"] = "wsd"
    decay_fraction: Annotated[
        Fraction, about("Fraction of the steps in the final decay phase.", by=_STEP)
    ] = 0.1


Training = SteadyTraining | WsdTraining


class CheckpointsConfig(Section, frozen=True, kw_only=True):
    """Settings for checkpoints: how often they are saved, and which ones are kept."""

    save_every_minutes: Annotated[
        Minutes, about("Minutes between checkpoints; 0 disables it.", by=_PLAN)
    ] = 10.0
    save_every_steps: Annotated[StepsOrZero, about("Steps between checkpoints; 0 disables it.")] = (
        5000
    )
    keep_last: Annotated[int, about("Newest checkpoints to keep.", (1, 100_000), "checkpoints")] = 5
    keep_every_steps: Annotated[
        StepsOrZero, about("Steps between checkpoints that are never deleted; 0 disables it.")
    ] = 100_000


class TpuConfig(Section, frozen=True, kw_only=True):
    """Settings of the machine that trains."""

    num_cores: Annotated[
        int, about("Cores that share a step's sequences.", (1, 4096), "cores", by=_STEP)
    ] = 8
    name: Annotated[
        Text, about("Name of the TPU; local: the TPU of this VM.", by=("pretrain",))
    ] = "local"
    zone: Annotated[Text | None, about("Zone of the TPU.", none="the VM's own")] = None


class Config(Section, frozen=True, kw_only=True):
    """Settings of a run. `MODEL_DIR/config.yaml` contains them and the facts of the data set."""

    tokenize: Annotated[TokenizeConfig, about(by=("tokenize",), change="free")] = TokenizeConfig()
    make_data: Annotated[DynamicMasks | StaticMasks, about(by=("make-data",), change="free")] = (
        DynamicMasks()
    )
    model: Annotated[Model, about(by=_ALL, change="fixed")] = BigBirdModel()
    data: Annotated[DataConfig, about(by=_RUN, change="fixed")] = DataConfig()
    training: Annotated[Training, about(by=_ALL, change="logged")] = SteadyTraining()
    checkpoints: Annotated[CheckpointsConfig, about(by=_RUN, change="free")] = CheckpointsConfig()
    tpu: Annotated[TpuConfig, about(by=_RUN, change="free")] = TpuConfig()


# Settings that are used only by evaluations during training.
EVALUATION_KEYS = ("training.eval_every_steps", "training.eval_max_batches")
