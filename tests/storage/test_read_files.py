"""Files that commands read, wrong at every place that their type declares: one line, never more."""

import json
from dataclasses import asdict
from typing import get_type_hints

import pytest

from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.plan import estimate
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run import records
from bigbird_ja.run.checkpoints import CheckpointStore, Meta, StoredFile
from tests.report import fake_run

_META = Meta(3, "c", "d", 1.5, 10, 0, 2.0, 3, 4, "0" * 64, {"a": StoredFile(1, "AAAAAA==")})
_BEAT = {"run": "r", "global_step": 5, "time": 1.7e9, "state": "training", "host": "vm", "pid": 7}
_BEAT |= {"reason": None, "tokens_per_second": 10.0, "num_train_steps": 9}
_EVENT = {"event": "started", "time": 1.7e9, "host": "vm", "pid": 7, "global_step": 0}
_STEP = {"step": 5, "time": 1.7e9, "loss": 2.0, "masked_lm_accuracy": 0.5}
_RATES = {"chips": [{"chip": "v3", "fits": True, "tokens_per_second_per_core": 1e4}]}


def _evaluations(folder):
    """A line of eval.jsonl is known by its key: one without it is left out, nothing is wrong."""
    if values := run_log.read_evaluations(folder):
        return values
    raise BadInput("eval.jsonl: nothing of the kind")


READERS = {  # by the file's name: what it must hold, a sample, and what reads it in a folder
    "heartbeat.json": (records.HeartbeatRecord, _BEAT, run_log.read_heartbeat),
    "events.jsonl": (records.EventRecord, _EVENT, run_log.read_events),
    "metrics.jsonl": (records.MetricsRecord, _STEP, run_log.read_metrics),
    "eval.jsonl": (records.Evaluation, fake_run.evaluation(5), _evaluations),
    "model.ckpt-3.json": (Meta, asdict(_META), lambda f: CheckpointStore(f).read_meta(3)),
    "x.json": (estimate.Results, _RATES, lambda f: estimate.load_results(f"{f}/x.json")),
    "config.json": (hf_config.FolderConfig, {"model_type": "big_bird"}, hf_config.read_config),
}


def _wrong(value):
    """The value with a list of lists, which no field takes, in each of its places."""
    yield [[0]]
    if isinstance(value, list) and value:
        yield from ([each, *value[1:]] for each in _wrong(value[0]))
    if isinstance(value, dict):
        yield from ({**value, key: each} for key in value for each in _wrong(value[key]))


@pytest.mark.parametrize("name", READERS)
def test_what_the_type_does_not_take_is_one_line_that_names_the_file(name, tmp_path):
    kind, sample, read = READERS[name]
    sample = {key: sample[key] for key in sample if key in get_type_hints(kind)}
    (tmp_path / name).write_text(json.dumps(sample) + "\n")
    assert read(str(tmp_path))
    cases = [*_wrong(sample), *({**sample, field: [[0]]} for field in get_type_hints(kind))]
    encoded = [json.dumps(case).encode() + b"\n" for case in cases]
    for data in (*encoded, b"[" * 10_000, "{}".encode("utf-16")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadInput, match=name) as refused:
            read(str(tmp_path))
        assert "\n" not in str(refused.value)
