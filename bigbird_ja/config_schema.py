"""Every setting: its type, default, meaning, unit and range."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TokenizeConfig:
    """How the SentencePiece model is trained (flags of `tokenize`)."""

    vocab_size: int = 32000  # pieces, special ones included
    model_type: str = "unigram"  # unigram | bpe
    character_coverage: float = 0.9995  # share of characters that get a piece of their own
    max_sentence_length: int = 16384  # bytes; longer lines are split, never dropped
    max_sentences: int = 2_000_000  # sentences sampled for training; 0 is all


@dataclass
class MakeDataConfig:
    """How records are made (flags of `make-data`). What came out is in the manifest."""

    seq_length: int = 4096  # tokens per sequence, special ones included
    masking: str = "dynamic"  # dynamic: targets drawn while training | static: in the records
    dupe_factor: int = 10  # copies with other masks (static only)
    max_predictions_per_seq: int = 600
    masked_lm_prob: float = 0.15  # share of tokens to predict
    mask_unit: str = "whole_word"  # subword | whole_word | span (n-gram of words)
    word_boundaries: str = "script"  # script: changes of script | mecab: fugashi with unidic-lite
    nsp: bool = False  # next-sentence prediction (segments A and B)
    eval_fraction: float = 0.01  # share of documents held out
    num_shards: int = 0  # train shards; 0 chooses from the corpus's size
    seed: int = 12345


@dataclass
class ModelConfig:
    """BigBird encoder (Zaheer et al. 2020, arXiv:2007.14062), post-norm like BERT."""

    vocab_size: int | None = None  # from the manifest
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_new"  # the tanh form, as Google's BigBird and Hugging Face's default
    max_position_embeddings: int | None = None  # None: the data's seq_length
    type_vocab_size: int = 2
    hidden_dropout_prob: float = 0.1  # block-sparse probabilities get none, as in the ancestor
    initializer_range: float = 0.02  # standard deviation of the truncated normal
    initializer: str = "normal"  # normal | mimetic: sees neighbours from the first step
    layer_norm_eps: float = 1e-12
    attention_type: str = "block_sparse"  # block_sparse | original_full | simulated_sparse
    block_size: int = 64  # tokens
    num_random_blocks: int = 3  # per query block (`independent`); `rolled` sees 2 tiles = 4 blocks
    random_pattern: str = "rolled"  # rolled | independent (three blocks drawn per row and head)
    pattern_seed: int = 0  # of the static random plan, recorded with the model
    attend_across_documents: bool = True  # packed documents see each other; [SEP] tells them apart


@dataclass
class DataConfig:
    """What the data set fixes (None: taken from its manifest), and how it is read."""

    seq_length: int | None = None  # tokens
    max_predictions_per_seq: int | None = None
    masking: str | None = None  # dynamic | static
    nsp: bool | None = None
    mask_unit: str | None = None  # dynamic only; None: the manifest's; may be changed at training
    shuffle_window: int = 8  # shards that are mixed with each other
    seed: int = 12345  # of order and dynamic masks


@dataclass
class TrainingConfig:
    """One optimiser step is one `global_step`."""

    num_train_steps: int = 1_400_000
    global_batch_size: int = 16  # sequences per step, over all cores and micro-batches
    gradient_accumulation_steps: int = 1  # micro-batches per step and core
    learning_rate: float = 1e-4  # peak
    warmup_steps: int = 10_000
    schedule: str = "linear"  # linear | cosine | wsd (warm-up, stable, decay)
    decay_fraction: float = 0.1  # last share of the steps that decays (wsd only)
    weight_decay: float = 0.01  # decoupled (AdamW); not on biases and layer norms
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    clip_norm: float = 1.0  # global norm; 0 is off
    dtype: str = "bfloat16"  # of activations: bfloat16 | float32; master weights are float32
    gradient_checkpointing: bool = False  # recompute each layer in the backward pass
    seed: int = 12345  # of initial weights and dropout
    log_every_steps: int = 100
    eval_every_steps: int = 10_000  # with --mode=train_and_eval
    max_loop_seconds: float = 15.0  # longest device loop: SIGTERM is answered between loops
    stall_minutes: float = 10.0  # the watchdog ends a run without a finished step; 0 is off


@dataclass
class CheckpointsConfig:
    """Two policies: by time against preemption, by step for keeps."""

    save_every_minutes: float = 10.0  # 0 is off
    save_every_steps: int = 5_000  # 0 is off
    keep_last: int = 5
    keep_every_steps: int = 100_000  # these are never removed; 0 is off


@dataclass
class TpuConfig:
    """The machine that trains."""

    num_cores: int = 8
    name: str = "local"  # on a TPU VM: local
    zone: str | None = None
    project: str | None = None


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


# Fixed by the data set: key -> where the same choice is stated for making one.
DATA_SET_KEYS: dict[str, str] = {
    "model.vocab_size": "tokenize.vocab_size",
    "data.seq_length": "make_data.seq_length",
    "data.max_predictions_per_seq": "make_data.max_predictions_per_seq",
    "data.masking": "make_data.masking",
    "data.nsp": "make_data.nsp",
}

# A model_dir accepts changes of these: run length, cadence of saving and logging, device.
CHANGEABLE_KEYS: frozenset[str] = frozenset(
    {
        "training.num_train_steps",
        "training.log_every_steps",
        "training.eval_every_steps",
        "training.max_loop_seconds",
        "training.stall_minutes",
        "checkpoints.save_every_minutes",
        "checkpoints.save_every_steps",
        "checkpoints.keep_last",
        "checkpoints.keep_every_steps",
        "tpu.num_cores",
        "tpu.name",
        "tpu.zone",
        "tpu.project",
    }
)

CHOICES: dict[str, tuple[str, ...]] = {
    "tokenize.model_type": ("unigram", "bpe"),
    "make_data.masking": ("dynamic", "static"),
    "make_data.mask_unit": ("subword", "whole_word", "span"),
    "make_data.word_boundaries": ("script", "mecab"),
    "model.hidden_act": ("gelu_new", "gelu", "relu"),
    "model.initializer": ("normal", "mimetic"),
    "model.attention_type": ("block_sparse", "original_full", "simulated_sparse"),
    "model.random_pattern": ("rolled", "independent"),
    "data.masking": ("dynamic", "static"),
    "data.mask_unit": ("subword", "whole_word", "span"),
    "training.schedule": ("linear", "cosine", "wsd"),
    "training.dtype": ("bfloat16", "float32"),
}

_INFINITY = float("inf")
RANGES: list[tuple[str, float, float]] = [
    ("tokenize.vocab_size", 16, 10_000_000),
    ("tokenize.character_coverage", 0.5, 1.0),
    ("tokenize.max_sentences", 0, _INFINITY),
    ("make_data.seq_length", 8, 1_000_000),
    ("make_data.dupe_factor", 1, 1000),
    ("make_data.max_predictions_per_seq", 1, 1_000_000),
    ("make_data.masked_lm_prob", 0.0001, 0.9),
    ("make_data.eval_fraction", 0.0, 0.5),
    ("make_data.num_shards", 0, 100_000),
    ("model.hidden_size", 1, 65536),
    ("model.num_layers", 1, 1000),
    ("model.num_attention_heads", 1, 1024),
    ("model.intermediate_size", 1, 1_000_000),
    ("model.type_vocab_size", 1, 1024),
    ("model.hidden_dropout_prob", 0.0, 0.9),
    ("model.block_size", 1, 4096),
    ("model.num_random_blocks", 0, 64),
    ("data.shuffle_window", 1, 100_000),
    ("training.num_train_steps", 1, _INFINITY),
    ("training.global_batch_size", 1, 1_000_000),
    ("training.gradient_accumulation_steps", 1, 100_000),
    ("training.learning_rate", 0.0, 10.0),
    ("training.warmup_steps", 0, _INFINITY),
    ("training.decay_fraction", 0.0, 1.0),
    ("training.weight_decay", 0.0, 10.0),
    ("training.clip_norm", 0.0, _INFINITY),
    ("training.log_every_steps", 1, _INFINITY),
    ("training.eval_every_steps", 1, _INFINITY),
    ("training.max_loop_seconds", 0.1, 25.0),
    ("training.stall_minutes", 0.0, _INFINITY),
    ("checkpoints.save_every_minutes", 0.0, _INFINITY),
    ("checkpoints.save_every_steps", 0, _INFINITY),
    ("checkpoints.keep_last", 1, 100_000),
    ("checkpoints.keep_every_steps", 0, _INFINITY),
    ("tpu.num_cores", 1, 4096),
]
