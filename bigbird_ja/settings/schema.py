"""Declare every setting of a run once: type, default, range, choices, unit and meaning.

A new setting is one field here, or in `settings.data` where it is about making data. Flags,
validation, `--help`, docs/settings.md, `bigbird-ja config`, the echo, which command uses it and
whether a resumed run may change it follow from that field; `option.Option` says what `has` takes.
"""

from typing import Annotated, Literal

from msgspec import Struct

from bigbird_ja.settings import SEED, MakeDataConfig, TokenizeConfig
from bigbird_ja.settings.option import INT64_MAX, LONGEST_RUN, Option, has, options_of

_BIGBIRD = "model.architecture=bigbird"
_MODERNBERT = "model.architecture=modernbert"
_IN_BLOCKS = f"{_BIGBIRD} & model.attention_type=block_sparse|simulated_sparse"

# Commands, for `by`: what only a run needs, what the compiled step is made of (`preflight`), and
# what operations, the number of steps and the work lost to preemptions follow from (`plan`).
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

    architecture: Annotated[
        Literal["bigbird", "modernbert"],
        "Shape of the encoder. modernbert: pre-norm, rotary positions, gated MLPs, local and"
        " global layers, by default with its exact gelu, layer norms (1e-5) and no dropout.",
    ] = "bigbird"
    vocab_size: Annotated[
        int | None,
        "Rows of the embedding table.",
        has(1, 10_000_000, "pieces", none="from the data set"),
    ] = None
    hidden_size: Annotated[int, has(1, 65_536), "Width of the encoder."] = 768
    num_layers: Annotated[int, has(1, 1000, "layers"), "Layers of the encoder."] = 12
    num_attention_heads: Annotated[
        int, has(1, 1024, "heads"), "Attention heads of a layer; they divide hidden_size."
    ] = 12
    intermediate_size: Annotated[
        int, has(1, 1_000_000), "Width inside a layer's feed-forward part."
    ] = 3072
    hidden_act: Annotated[
        Literal["gelu_new", "gelu", "relu"],
        "Activation; gelu_new is the tanh form that Google's BigBird has.",
        has(modernbert="gelu", by=_STEP),
    ] = "gelu_new"
    max_position_embeddings: Annotated[
        int | None,
        "Rows of the position table: the longest sequence that the model takes.",
        has(1, 10_000_000, "tokens", none="the data's seq_length", by=_STEP),
    ] = None
    hidden_dropout_prob: Annotated[
        float,
        "Dropout of hidden states; block-sparse attention weights get none.",
        has(0.0, 0.9, modernbert=0.0, by=_STEP),
    ] = 0.1
    initializer_range: Annotated[
        float,
        "Standard deviation of the truncated normal that weights start from.",
        has(0.0, 10.0, by=_RUN),
    ] = 0.02
    initializer: Annotated[
        Literal["normal", "subspaces"],
        "subspaces: every head sees one neighbour from the first step (to learn in minutes).",
        has(modernbert="normal", by=_RUN),
    ] = "normal"
    layer_norm_eps: Annotated[
        float, "Added to the variance in layer norms.", has(0.0, 1.0, modernbert=1e-5, by=_STEP)
    ] = 1e-12
    attention_type: Annotated[
        Literal["block_sparse", "original_full", "simulated_sparse"],
        "Block-sparse, full, or full under the sparse mask (for comparisons).",
        has(only_with=_BIGBIRD, by=_MAKING),
    ] = "block_sparse"
    block_size: Annotated[
        int,
        "Tokens of an attention block.",
        has(1, 4096, "tokens", only_with=_IN_BLOCKS, by=_MAKING),
    ] = 64
    num_random_blocks: Annotated[
        int,
        "Random blocks that a query block sees (`rolled` rounds up to tiles of two).",
        has(0, 64, "blocks", only_with=_IN_BLOCKS, by=_MAKING),
    ] = 3
    random_pattern: Annotated[
        Literal["rolled", "independent"],
        "rolled: whole tiles, shifted alike for all rows of a head; independent: blocks drawn"
        " for each row and head.",
        has(only_with=_IN_BLOCKS, by=_MAKING),
    ] = "rolled"
    pattern_seed: Annotated[
        int,
        "Of the random blocks, which are drawn once and stay.",
        has(0, 2**32 - 1, only_with=_IN_BLOCKS),
    ] = 0
    attention_implementation: Annotated[
        Literal["auto", "xla", "kernel"],
        "How attention is computed. kernel: in one kernel each way, without scores in memory;"
        " needs the engine pjrt and a newer TPU. auto: where it is shown cheaper (v5e, v6e).",
        has(change="free", by=_STEP),
    ] = "auto"
    attend_across_documents: Annotated[
        bool, "Documents packed into one sequence see each other.", has(by=_STEP)
    ] = True
    local_attention: Annotated[
        int,
        "Window of a local layer: its tokens see half as many on each side.",
        has(2, 1_000_000, "tokens", only_with=_MODERNBERT),
    ] = 128
    global_attn_every_n_layers: Annotated[
        int,
        "Layers 0, n, 2n, ... see the whole sequence; the others are local.",
        has(1, 1000, "layers", only_with=_MODERNBERT),
    ] = 3
    global_rope_theta: Annotated[
        float,
        "Base of the rotary positions' wavelengths in global layers; 160,000 holds to 8,192"
        " tokens.",
        has(1.0, 1e12, only_with=_MODERNBERT, by=_STEP),
    ] = 160_000.0
    local_rope_theta: Annotated[
        float, "The same in local layers.", has(1.0, 1e12, only_with=_MODERNBERT, by=_STEP)
    ] = 10_000.0


class DataConfig(Struct, frozen=True, kw_only=True):
    """Configure how a data set is read."""

    mask_unit: Annotated[
        Literal["subword", "whole_word", "span"] | None,
        "What dynamic masks take together; training may choose another than the data set's.",
        has(none="from the data set"),
    ] = None
    shuffle_window: Annotated[
        int, has(1, 100_000, "shards"), "Shards that are mixed with each other."
    ] = 8
    seed: Annotated[int, SEED, "Of the order of records and of dynamic masks."] = 12_345


class TrainingConfig(Struct, frozen=True, kw_only=True):
    """Configure the optimiser and its schedule. One optimiser step is one `global_step`."""

    num_train_steps: Annotated[
        int,
        "Steps in all; a larger number continues a finished run.",
        has(1, LONGEST_RUN, "steps", change="free"),
    ] = 1_400_000
    global_batch_size: Annotated[
        int,
        has(1, 1_000_000, "sequences"),
        "Sequences of a step, over all cores and micro-batches.",
    ] = 16
    gradient_accumulation_steps: Annotated[
        int, has(1, 100_000), "Micro-batches of a step on each core."
    ] = 1
    learning_rate: Annotated[float, has(0.0, 10.0), "Peak of the learning rate."] = 0.0001
    warmup_steps: Annotated[
        int, has(0, LONGEST_RUN, "steps"), "Steps in which the learning rate rises to its peak."
    ] = 10_000
    schedule: Annotated[
        Literal["linear", "cosine", "wsd", "google"],
        "After the warm-up: linear or cosine to zero; wsd: stable, with a decay at the end;"
        " google: as in BERT's code, linear from step 0 on.",
        has(by=_STEP),
    ] = "linear"
    decay_fraction: Annotated[
        float,
        "Last share of the steps, in which the rate decays.",
        has(0.0, 1.0, only_with="training.schedule=wsd", by=_STEP),
    ] = 0.1
    optimizer: Annotated[
        Literal["adamw", "muon"],
        "muon: Muon for the layers' matrices, AdamW for all else, at the same rate and decay,"
        " which are AdamW's; several devices share its work.",
        has(change="fixed", by=_STEP),
    ] = "adamw"
    update_rule: Annotated[
        Literal["adamw", "google"],
        "Of AdamW. adamw: with bias correction; google: without, as in BERT's and BigBird's code.",
        has(by=_STEP),
    ] = "adamw"
    weight_decay: Annotated[
        float, "Decoupled decay (AdamW); not of biases and layer norms.", has(0.0, 10.0, by=_STEP)
    ] = 0.01
    adam_beta2: Annotated[
        float,
        "Decay of the running mean of squared gradients.",
        has(least=0.0, below=1.0, by=_STEP),
    ] = 0.999
    adam_epsilon: Annotated[
        float, "Added to the root of the mean square.", has(above=0.0, most=1.0, by=_STEP)
    ] = 1e-06
    clip_norm: Annotated[
        float, "Largest global norm of the gradients; 0 is off.", has(0.0, 1e9, by=_STEP)
    ] = 1.0
    dtype: Annotated[
        Literal["bfloat16", "float32"], "Of activations; master weights are float32.", has(by=_STEP)
    ] = "bfloat16"
    masked_lm_prob: Annotated[
        float | None,
        "Share of ordinary tokens to predict at the first step, for dynamic masks; evaluation"
        " keeps the data set's.",
        has(above=0.0, below=1.0, only_with="make_data.masking=dynamic"),
        has(none="the data set's, at every step"),
    ] = None
    final_masked_lm_prob: Annotated[
        float | None,
        "Share that training.masked_lm_prob goes to in a line.",
        has(above=0.0, below=1.0, none="training.masked_lm_prob, at every step"),
    ] = None
    gradient_checkpointing: Annotated[
        bool,
        "Computes each layer again in the backward pass: less memory, more time.",
        has(by=_STEP),
    ] = False
    seed: Annotated[
        int, "Of initial weights and dropout.", has(-(2**63), INT64_MAX, change="fixed", by=_STEP)
    ] = 12_345
    log_every_steps: Annotated[
        int,
        "Between two lines of metrics.jsonl.",
        has(1, LONGEST_RUN, "steps", change="free", by=_RUN),
    ] = 100
    eval_every_steps: Annotated[
        int,
        "Between two evaluations, with --mode train_and_eval.",
        has(1, LONGEST_RUN, "steps", needs_flag="mode=train_and_eval", change="free", by=_RUN),
    ] = 10_000
    eval_max_batches: Annotated[
        int | None,
        "Longest evaluation in training; a batch has 16,384 tokens.",
        has(1, 1_000_000_000, "batches", none="all held-out records"),
        has(needs_flag="mode=train_and_eval", change="free", by=_RUN),
    ] = None
    stall_minutes: Annotated[
        float,
        "The watchdog ends a run that finishes no step for so long; 0 is off.",
        has(0.0, 1e6, "minutes", change="free", by=_RUN),
    ] = 10.0


class CheckpointsConfig(Struct, frozen=True, kw_only=True):
    """Configure saving: by time against preemption, by step for keeps."""

    save_every_minutes: Annotated[
        float, "Time between two checkpoints; 0 is off.", has(0.0, 1e6, "minutes", by=_PLAN)
    ] = 10.0
    save_every_steps: Annotated[
        int, has(0, LONGEST_RUN, "steps"), "Steps between two checkpoints; 0 is off."
    ] = 5000
    keep_last: Annotated[int, has(1, 100_000, "checkpoints"), "Newest checkpoints to keep."] = 5
    keep_every_steps: Annotated[
        int,
        has(0, LONGEST_RUN, "steps"),
        "Checkpoints at multiples of this are never removed; 0 is off.",
    ] = 100_000


class TpuConfig(Struct, frozen=True, kw_only=True):
    """Configure the machine that trains."""

    num_cores: Annotated[
        int, "Cores over which a step's sequences are divided.", has(1, 4096, "cores", by=_STEP)
    ] = 8
    name: Annotated[
        str,
        "Name of the TPU; local: the one of this TPU VM.",
        has(needs_flag="use_tpu", filled=True),
    ] = "local"
    zone: Annotated[str | None, "Zone of the TPU.", has(none="the VM's own", filled=True)] = None


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
