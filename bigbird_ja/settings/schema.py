"""Declare every setting of a run once: type, default, range, choices, unit and meaning.

A new setting is one field here, or in `settings` where it is about making data, and its meaning
the string below it. Flags, validation, `--help`, docs/settings.md, `bigbird-ja config`, the echo,
its commands and the changes that a resumed run accepts follow from that; `option.Option` lists the
arguments of `has`.
"""

from typing import Annotated, Literal

from msgspec import Struct

from bigbird_ja.settings import SEED, MakeDataConfig, TokenizeConfig
from bigbird_ja.settings.option import INT64_MAX, LONGEST_RUN, Option, has, options_of

_BIGBIRD = "model.architecture=bigbird"
_MODERNBERT = "model.architecture=modernbert"
_IN_BLOCKS = f"{_BIGBIRD} & model.attention_type=block_sparse|simulated_sparse"

# Commands, for `by`: settings of a run alone, of the compiled step (`preflight`), and those that
# operations, steps and the work lost to preemptions depend on (`plan`).
_RUN = ("pretrain", "launch")
_STEP = (*_RUN, "preflight")
_PLAN = (*_RUN, "plan")
_ALL = (*_RUN, "preflight", "plan")
_MAKING = (*_ALL, "make-data")


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Configure the encoder.

    BigBird (Zaheer et al. 2020, arXiv:2007.14062), post-norm like BERT, or ModernBERT (Warner et
    al. 2024, arXiv:2412.13663).
    """

    architecture: Literal["bigbird", "modernbert"] = "bigbird"
    """Shape of the encoder. modernbert: pre-norm, rotary positions, gated MLPs, local and global
    layers, by default with its exact gelu, layer norms (1e-5) and no dropout.
    """

    vocab_size: Annotated[int | None, has(1, 10_000_000, "pieces", none="from the data set")] = None
    """Rows of the embedding table."""

    hidden_size: Annotated[int, has(1, 65_536)] = 768
    """Width of the encoder."""

    num_layers: Annotated[int, has(1, 1000, "layers")] = 12
    """Layers of the encoder."""

    num_attention_heads: Annotated[int, has(1, 1024, "heads")] = 12
    """Attention heads of a layer; they divide hidden_size."""

    intermediate_size: Annotated[int, has(1, 1_000_000)] = 3072
    """Width inside a layer's feed-forward part."""

    hidden_act: Annotated[Literal["gelu_new", "gelu", "relu"], has(modernbert="gelu", by=_STEP)] = (
        "gelu_new"
    )
    """Activation; gelu_new is the tanh form that Google's BigBird has."""

    max_position_embeddings: Annotated[
        int | None, has(1, 10_000_000, "tokens", none="the data's seq_length", by=_STEP)
    ] = None
    """Rows of the position table: the longest sequence that the model takes."""

    hidden_dropout_prob: Annotated[float, has(0.0, 0.9, modernbert=0.0, by=_STEP)] = 0.1
    """Dropout of hidden states; block-sparse attention weights get none."""

    initializer_range: Annotated[float, has(0.0, 10.0, by=_RUN)] = 0.02
    """Standard deviation of the truncated normal that weights start from."""

    initializer: Annotated[Literal["normal", "subspaces"], has(modernbert="normal", by=_RUN)] = (
        "normal"
    )
    """subspaces: every head sees one neighbour from the first step (to learn in minutes)."""

    layer_norm_eps: Annotated[float, has(0.0, 1.0, modernbert=1e-5, by=_STEP)] = 1e-12
    """Added to the variance in layer norms."""

    attention_type: Annotated[
        Literal["block_sparse", "original_full", "simulated_sparse"],
        has(only_with=_BIGBIRD, by=_MAKING),
    ] = "block_sparse"
    """Block-sparse, full, or full under the sparse mask (for comparisons)."""

    block_size: Annotated[int, has(1, 4096, "tokens", only_with=_IN_BLOCKS, by=_MAKING)] = 64
    """Tokens of an attention block."""

    num_random_blocks: Annotated[int, has(0, 64, "blocks", only_with=_IN_BLOCKS, by=_MAKING)] = 3
    """Random blocks that a query block sees (`rolled` rounds up to tiles of two)."""

    random_pattern: Annotated[
        Literal["rolled", "independent"], has(only_with=_IN_BLOCKS, by=_MAKING)
    ] = "rolled"
    """rolled: whole tiles, shifted alike for all rows of a head; independent: blocks drawn for each
    row and head.
    """

    pattern_seed: Annotated[int, has(0, 2**32 - 1, only_with=_IN_BLOCKS)] = 0
    """Of the random blocks, which are drawn once and stay."""

    attention_implementation: Annotated[
        Literal["auto", "xla", "kernel"], has(change="free", by=_STEP)
    ] = "auto"
    """Computation of attention. kernel: in one kernel each way, without scores in memory; needs
    the engine pjrt and a newer TPU. auto: where it is shown cheaper (v5e, v6e).
    """

    attend_across_documents: Annotated[bool, has(by=_STEP)] = True
    """Documents packed into one sequence see each other."""

    local_attention: Annotated[int, has(2, 1_000_000, "tokens", only_with=_MODERNBERT)] = 128
    """Window of a local layer: its tokens see half as many on each side."""

    global_attn_every_n_layers: Annotated[int, has(1, 1000, "layers", only_with=_MODERNBERT)] = 3
    """Layers 0, n, 2n, ... see the whole sequence; the others are local."""

    global_rope_theta: Annotated[float, has(1.0, 1e12, only_with=_MODERNBERT, by=_STEP)] = 160_000.0
    """Base of the rotary positions' wavelengths in global layers; 160,000 holds to 8,192 tokens."""

    local_rope_theta: Annotated[float, has(1.0, 1e12, only_with=_MODERNBERT, by=_STEP)] = 10_000.0
    """The same in local layers."""


class DataConfig(Struct, frozen=True, kw_only=True):
    """Configure how a data set is read."""

    mask_unit: Annotated[
        Literal["subword", "whole_word", "span"] | None, has(none="from the data set")
    ] = None
    """Units that dynamic masks take together; training may choose another than the data set's."""

    shuffle_window: Annotated[int, has(1, 100_000, "shards")] = 8
    """Shards that are mixed with each other."""

    seed: Annotated[int, SEED] = 12_345
    """Of the order of records and of dynamic masks."""


class TrainingConfig(Struct, frozen=True, kw_only=True):
    """Configure the optimiser and its schedule. One optimiser step is one `global_step`."""

    num_train_steps: Annotated[int, has(1, LONGEST_RUN, "steps", change="free")] = 1_400_000
    """Steps in all; a larger number continues a finished run."""

    global_batch_size: Annotated[int, has(1, 1_000_000, "sequences")] = 16
    """Sequences of a step, over all cores and micro-batches."""

    gradient_accumulation_steps: Annotated[int, has(1, 100_000)] = 1
    """Micro-batches of a step on each core."""

    learning_rate: Annotated[float, has(0.0, 10.0)] = 0.0001
    """Peak of the learning rate."""

    warmup_steps: Annotated[int, has(0, LONGEST_RUN, "steps")] = 10_000
    """Steps in which the learning rate rises to its peak."""

    schedule: Annotated[Literal["linear", "cosine", "wsd", "google"], has(by=_STEP)] = "linear"
    """After the warm-up: linear or cosine to zero; wsd: stable, with a decay at the end; google: as
    in BERT's code, linear from step 0 on.
    """

    decay_fraction: Annotated[float, has(0.0, 1.0, only_with="training.schedule=wsd", by=_STEP)] = (
        0.1
    )
    """Last share of the steps, in which the rate decays."""

    optimizer: Annotated[Literal["adamw", "muon"], has(change="fixed", by=_STEP)] = "adamw"
    """muon: Muon for the layers' matrices, AdamW for all else, at the same rate and decay, which
    are AdamW's; several devices share its work.
    """

    update_rule: Annotated[Literal["adamw", "google"], has(by=_STEP)] = "adamw"
    """Of AdamW. adamw: with bias correction; google: without, as in BERT's and BigBird's code."""

    weight_decay: Annotated[float, has(0.0, 10.0, by=_STEP)] = 0.01
    """Decoupled decay (AdamW); not of biases and layer norms."""
    adam_beta2: Annotated[float, has(least=0.0, below=1.0, by=_STEP)] = 0.999
    """Decay of the running mean of squared gradients."""

    adam_epsilon: Annotated[float, has(above=0.0, most=1.0, by=_STEP)] = 1e-06
    """Added to the root of the mean square."""

    clip_norm: Annotated[float, has(0.0, 1e9, by=_STEP)] = 1.0
    """Largest global norm of the gradients; 0 is off."""

    dtype: Annotated[Literal["bfloat16", "float32"], has(by=_STEP)] = "bfloat16"
    """Of activations; master weights are float32."""

    masked_lm_prob: Annotated[
        float | None,
        has(above=0.0, below=1.0, only_with="make_data.masking=dynamic"),
        has(none="the data set's, at every step"),
    ] = None
    """Share of ordinary tokens to predict at the first step, for dynamic masks; evaluation keeps
    the data set's.
    """

    final_masked_lm_prob: Annotated[
        float | None, has(above=0.0, below=1.0, none="training.masked_lm_prob, at every step")
    ] = None
    """Share that training.masked_lm_prob goes to in a line."""

    gradient_checkpointing: Annotated[bool, has(by=_STEP)] = False
    """Computes each layer again in the backward pass: less memory, more time."""

    seed: Annotated[int, has(-(2**63), INT64_MAX, change="fixed", by=_STEP)] = 12_345
    """Of initial weights and dropout."""

    log_every_steps: Annotated[int, has(1, LONGEST_RUN, "steps", change="free", by=_RUN)] = 100
    """Between two lines of metrics.jsonl."""

    eval_every_steps: Annotated[
        int, has(1, LONGEST_RUN, "steps", needs_flag="mode=train_and_eval", change="free", by=_RUN)
    ] = 10_000
    """Between two evaluations, with --mode train_and_eval."""

    eval_max_batches: Annotated[
        int | None,
        has(1, 1_000_000_000, "batches", none="all held-out records"),
        has(needs_flag="mode=train_and_eval", change="free", by=_RUN),
    ] = None
    """Longest evaluation in training; a batch has 16,384 tokens."""

    stall_minutes: Annotated[float, has(0.0, 1e6, "minutes", change="free", by=_RUN)] = 10.0
    """The watchdog ends a run that finishes no step for so long; 0 is off."""


class CheckpointsConfig(Struct, frozen=True, kw_only=True):
    """Configure saving: by time against preemption, by step for keeps."""

    save_every_minutes: Annotated[float, has(0.0, 1e6, "minutes", by=_PLAN)] = 10.0
    """Time between two checkpoints; 0 is off."""

    save_every_steps: Annotated[int, has(0, LONGEST_RUN, "steps")] = 5000
    """Steps between two checkpoints; 0 is off."""

    keep_last: Annotated[int, has(1, 100_000, "checkpoints")] = 5
    """Newest checkpoints to keep."""

    keep_every_steps: Annotated[int, has(0, LONGEST_RUN, "steps")] = 100_000
    """Checkpoints at multiples of this are never removed; 0 is off."""


class TpuConfig(Struct, frozen=True, kw_only=True):
    """Configure the machine that trains."""

    num_cores: Annotated[int, has(1, 4096, "cores", by=_STEP)] = 8
    """Cores over which a step's sequences are divided."""

    name: Annotated[str, has(needs_flag="use_tpu", filled=True)] = "local"
    """Name of the TPU; local: the one of this TPU VM."""

    zone: Annotated[str | None, has(none="the VM's own", filled=True)] = None
    """Zone of the TPU."""


class Config(Struct, frozen=True, kw_only=True):
    """Hold all that a run decides; `MODEL_DIR/config.yaml` states it, with the run's data."""

    tokenize: Annotated[TokenizeConfig, has(by=("tokenize",), change="free")] = TokenizeConfig()
    make_data: Annotated[MakeDataConfig, has(by=("make-data",), change="free")] = MakeDataConfig()
    model: Annotated[ModelConfig, has(by=_ALL)] = ModelConfig()
    data: Annotated[DataConfig, has(by=_RUN)] = DataConfig()
    training: Annotated[TrainingConfig, has(by=_ALL, change="logged")] = TrainingConfig()
    checkpoints: Annotated[CheckpointsConfig, has(by=_RUN, change="free")] = CheckpointsConfig()
    tpu: Annotated[TpuConfig, has(by=_RUN, change="free")] = TpuConfig()


OPTIONS: dict[str, Option] = options_of(Config)


def used_by(command: str) -> tuple[str, ...]:
    """List the settings that have an effect in a command."""
    return tuple(key for key, option in OPTIONS.items() if command in option.by)
