"""Types of the records in a run's log files: keys that readers rely on, and ranges of values.

A record is a dictionary, which `log` checks when it reads a line. Keys that a type does not declare
are kept unchanged. `None` stands for a number that JSON cannot represent (NaN, infinity).
"""

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bigbird_ja.storage.decode import Count

# UNIX time up to the year 3000, or a duration, in seconds.
Time = Annotated[float, Meta(ge=0, le=32_503_680_000)]
PerSecond = Annotated[float, Meta(ge=0, le=1e18)]
Usd = Annotated[float, Meta(ge=0, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]  # Range of values that a chart can show.


class _Heartbeat(TypedDict):
    global_step: Count
    time: Time
    state: str  # starting | training | saving | stopped


class HeartbeatRecord(_Heartbeat, total=False):
    """Content of `heartbeat.json`."""

    reason: str | None
    tokens_per_second: PerSecond | None
    num_train_steps: Count | None
    loss: Finite | None
    step_time: Time
    compile_seconds: Time  # Duration of the engine's start, including compilation.


class _Event(TypedDict):
    event: str
    time: Time


class EventRecord(_Event, total=False):
    """A line of `events.jsonl`, written by the trainer or the supervisor."""

    source: str
    global_step: Count | None
    reason: str | None
    engine: str
    environment: dict[str, Any]
    init_from: dict[str, Any]
    replicas: Count
    cores: Count
    cost_usd: Usd | None


class _Metrics(TypedDict):
    step: Count
    time: Time


class MetricsRecord(_Metrics, total=False):
    """A line of `metrics.jsonl`, about one logged step."""

    loss: Finite | None
    masked_lm_loss: Finite | None
    masked_lm_accuracy: Finite | None
    learning_rate: Finite | None
    tokens_per_second: PerSecond | None
    train_seconds: Time | None
    mfu: Finite | None


# Range of positions or distances in tokens, and number of predictions in the range. `to` is
# exclusive. Distances are measured to the nearest visible occurrence of the same token. For tokens
# without such an occurrence, both ends are None.
_Span = TypedDict("_Span", {"from": Count | None, "to": Count | None, "count": Count})


class PredictionBucket(_Span):
    """Loss and accuracy of the predictions in a range of positions or distances."""

    loss: Finite | None
    accuracy: Finite | None


class Example(TypedDict):
    """A masked word of held-out text (or of a fixed sentence), with the model's guess."""

    before: str
    after: str
    truth: str
    guess: str
    probability: Share


class _Evaluation(TypedDict):
    step: Count
    time: Time
    masked_lm_loss: Finite | None
    masked_lm_accuracy: Finite | None


class Evaluation(_Evaluation, total=False):
    """A line of `eval.jsonl`, about an evaluation on held-out records."""

    perplexity: Annotated[float, Meta(ge=0)] | None
    bits_per_character: Finite | None
    predictions: Count
    sequences: Count
    next_sentence_loss: Finite | None
    next_sentence_accuracy: Finite | None
    by_position: list[PredictionBucket]
    by_distance: list[PredictionBucket]
    examples: list[Example]
    data_fingerprint: str
    max_batches: Count | None
