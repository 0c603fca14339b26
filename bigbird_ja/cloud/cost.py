"""Tokens, FLOPs, hours and money: arithmetic only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bigbird_ja.config import Config

SECONDS_PER_HOUR = 3600.0
HOURS_PER_MONTH = 730.0

# Wiki40b Japanese (TFDS wiki40b/ja, train split) as our background states it, and what the 2021
# tokenizer makes of it. Used only where there is no data set, and printed as an assumption.
WIKI40B_JA_BYTES = 1.9e9
BYTES_PER_TOKEN = 6.0  # Japanese UTF-8 text in a vocabulary of 32,000 pieces: two characters


@dataclass(frozen=True)
class Overheads:
    """What preemptions cost, apart from the TPU's price. Seconds, and events per rented hour."""

    preemptions_per_hour: float = 0.25  # one in four hours; see docs/launch for what it rests on
    checkpoint_interval: float = 600.0  # seconds of training between two checkpoints
    save_seconds: float = 15.0  # training stands still this long for a checkpoint
    restart_seconds: float = 360.0  # READY until the first step: boot, install, compile, restore
    absent_seconds: float = 300.0  # unbilled: noticed, deleted, created again


@dataclass(frozen=True)
class RunTime:
    """Expected hours of one run; None where it would never end."""

    training_hours: float
    rented_hours: float | None
    wall_hours: float | None
    preemptions: float | None

    @property
    def useful_share(self) -> float | None:
        """Share of the rented time that is training and is not lost again."""
        return self.training_hours / self.rented_hours if self.rented_hours else None


def tokens_per_step(config: Config) -> int:
    """Positions per optimiser step; with full sequences (99 %) they are tokens."""
    return config.training.global_batch_size * int(config.data.seq_length or 0)


def model_flops_per_sequence(config: Config) -> float:
    """FLOPs of one sequence's forward and backward pass, without anything computed twice.

    Multiplications and additions of matrix products only: projections, MLP, the keys that each
    query attends to, the MLM head on the predicted positions.
    """
    model, length = config.model, int(config.data.seq_length or 0)
    hidden, layers = model.hidden_size, model.num_layers
    dense = 2 * (4 * hidden * hidden + 2 * hidden * model.intermediate_size) * length
    attention = 4 * hidden * attended_pairs(config)
    predictions = int(config.data.max_predictions_per_seq or 0)
    head = 2 * (hidden * hidden + hidden * int(model.vocab_size or 0)) * predictions
    return 3.0 * (layers * (dense + attention) + head)


def attended_pairs(config: Config) -> int:
    """Query-key pairs of one head and one sequence."""
    model, length = config.model, int(config.data.seq_length or 0)
    blocks, size = length // model.block_size, model.block_size
    random_blocks = 4 if model.random_pattern == "rolled" else model.num_random_blocks
    width = 3 + 2 + random_blocks  # window, first and last block, random
    if model.attention_type == "original_full" or blocks <= width:
        return length * length
    return size * size * ((blocks - 2) * width + 2 * blocks)


def parameter_count(config: Config) -> int:
    """Trainable parameters, the tied MLM projection counted once."""
    model, hidden = config.model, config.model.hidden_size
    embeddings = hidden * (
        int(model.vocab_size or 0)
        + int(model.max_position_embeddings or 0)
        + model.type_vocab_size
        + 2
    )
    layer = (
        4 * (hidden + 1) * hidden + 2 * hidden * model.intermediate_size + model.intermediate_size
    )
    head = (hidden + 1) * hidden + 2 * hidden + int(model.vocab_size or 0)
    pooler = ((hidden + 1) * hidden + 2 * (hidden + 1)) if config.data.nsp else 0
    return embeddings + model.num_layers * (layer + 5 * hidden) + head + pooler


def checkpoint_bytes(config: Config) -> int:
    """One checkpoint: float32 weights and two optimiser slots each."""
    return 12 * parameter_count(config)


def kept_checkpoints(config: Config, steps: int) -> int:
    """How many checkpoints lie on the bucket at the end of a run."""
    every = config.checkpoints.keep_every_steps
    return config.checkpoints.keep_last + (steps // every if every else 0)


def run_time(training_hours: float, overheads: Overheads, preemptible: bool) -> RunTime:
    """Expected hours with preemptions as a Poisson process over rented time.

    Each preemption repeats half a checkpoint interval on average and waits for the restart. With
    T the interval, s the save, R the restart and r the rate, rented hours H solve
    H = U (1 + s/T) + r H (T/2 + s/2 + R).
    """
    rate = overheads.preemptions_per_hour if preemptible else 0.0
    interval = overheads.checkpoint_interval
    busy = training_hours * (1 + (overheads.save_seconds / interval if interval else 0))
    restart = overheads.restart_seconds / SECONDS_PER_HOUR
    lost = (interval + overheads.save_seconds) / 2 / SECONDS_PER_HOUR + restart
    share = 1 - rate * lost
    if share <= 0:
        return RunTime(training_hours, None, None, None)
    rented = (busy + restart) / share
    preemptions = rate * rented
    wall = rented + (preemptions + 1) * overheads.absent_seconds / SECONDS_PER_HOUR
    return RunTime(training_hours, rented, wall, preemptions)


def best_interval(overheads: Overheads) -> float:
    """Young's first-order optimum, seconds: sqrt(2 * save * mean time between preemptions)."""
    if not overheads.preemptions_per_hour:
        return math.inf
    return math.sqrt(2 * overheads.save_seconds * SECONDS_PER_HOUR / overheads.preemptions_per_hour)
