"""The logs of a long run with several interruptions, without checkpoints."""

import json
import math
from itertools import pairwise

from bigbird_ja.settings.config_file import config_to_yaml
from bigbird_ja.settings.values import replace_settings
from testkit.configs import fitted, with_data

START = 1_700_000_000.0  # UNIX seconds
STEP_SECONDS = 2.0
EVERY = 50
PAUSE_SECONDS = 1200.0
TOTAL = 10_000
STEADY = {"tokens_per_second": 65_000.0, "learning_rate": 1e-4, "masked_lm_accuracy": 0.5}


def write(directory, *, steps=6000, seed=0):
    """Write the logs of four sessions: ended by SIGTERM, killed, preempted, and running."""
    directory.mkdir(parents=True)
    config = fitted()
    changed = {
        "training.num_train_steps": TOTAL,
        "tokenize.max_sentences": 100_000,
        "training.learning_rate": 1e-4 * (1 + seed),
    }
    config = replace_settings(config, changed)
    (directory / "config.yaml").write_text(config_to_yaml(*with_data(config)))
    metrics, events, time, step = [], [], START - PAUSE_SECONDS, 0
    for number, ending in enumerate(("interrupted", None, "preempted", None), start=1):
        time += PAUSE_SECONDS
        events.append(_event("resumed" if step else "started", time, step))
        while step < steps * number // 4:
            step, time = step + EVERY, time + EVERY * STEP_SECONDS
            now = {"step": step, "time": time, "train_seconds": step * STEP_SECONDS}
            metrics.append({**now, **STEADY, "loss": 9 * math.exp(-step / 2500) + 2})
            if step % 500 == 0:
                events.append(_event("saved", time, step))
        if ending:
            events.append(_event(ending, time + 5, step))
    beat = {"run": directory.name, "host": "vm", "pid": 1, "state": "training", "reason": None}
    beat |= {"time": time, "num_train_steps": TOTAL, "global_step": step}
    (directory / "heartbeat.json").write_text(json.dumps(STEADY | beat))
    evaluations = [evaluation(step) for step in range(2000, steps + 1, 2000)]
    for name, lines in (("metrics", metrics), ("events", events), ("eval", evaluations)):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (directory / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return directory


def end_of(directory):
    """Return the time of the run's last heartbeat."""
    return float(json.loads((directory / "heartbeat.json").read_text())["time"])


def evaluation(step):
    """Return the evaluation at a step, as a line of eval.jsonl contains it."""
    loss = 9 * math.exp(-step / 2500) + 2.1
    edges = [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    rows = [
        {"from": low, "to": high, "count": 100, "loss": loss, "accuracy": 0.5 - 0.04 * i}
        for i, (low, high) in enumerate([*pairwise(edges), (None, None)])
    ]
    parts = ("before", "truth", "guess", "probability", "after")
    examples = [
        ("日本の首都は", "東京", "東京", 0.91, "である。"),
        ("<b>江戸</b>時代の", "将軍", "人", 0.08, "として知られる & 。"),
    ]
    scores = {"masked_lm_loss": loss, "masked_lm_accuracy": 0.5, "perplexity": math.exp(loss)}
    return {
        **{"step": step, "time": START + step * STEP_SECONDS, **scores},
        **{"by_position": rows[:8], "by_distance": rows},
        "examples": [dict(zip(parts, example, strict=True)) for example in examples],
    }


def _event(name, time, step):
    return {"event": name, "time": time, "host": "vm", "pid": 1, "global_step": step}
