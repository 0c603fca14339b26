"""Files that commands read, wrong at every place that their type declares: one line, never more."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from bigbird_ja import plan, run
from bigbird_ja.launch import LaunchedRun
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.state import ExitReport, RunState
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore, Meta, StoredFile
from bigbird_ja.storage.decode import FORMAT_VERSION
from bigbird_ja.train import hf_folder
from tests.report import fake_run


@dataclass(frozen=True)
class _Reader:
    """A file: where it lies in a folder, what it must hold, a sample, and what reads it there."""

    path: str
    kind: Any
    sample: Any
    read: Callable[[str], Any]

    def write(self, folder, data):
        (folder / self.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / self.path).write_bytes(data)


def _encoded(value):
    return json.dumps(value).encode() + b"\n"


def _of_run(folder):
    return RunFiles(LaunchedRun(folder, "r"))


def _evaluations(folder):
    """A line of eval.jsonl is known by its key: one without it is left out, nothing is wrong."""
    if values := run_log.read_evaluations(folder):
        return values
    raise BadInput("eval.jsonl: nothing of the kind")


_META = Meta(3, "c", "d", 1.5, 10, 0, 2.0, 3, 4, "0" * 64, {"a": StoredFile(1, "AAAAAA==")})
_SIDECAR = asdict(_META)
_VERSION = {"format_version": FORMAT_VERSION}
_LAUNCHED = asdict(LaunchedRun("b", "r", package="p", zones=("z",), usd_per_hour=1.0)) | _VERSION
_MADE = RunState(used_zones=("z",), struck_zones={"z": "full"}, strikes={"z": 1})
_STATE = msgspec.to_builtins(_MADE) | _VERSION
_EXIT = {"attempt": 3, "status": 71}
_BEAT: dict[str, Any] = {"run": "r", "global_step": 5, "time": 1.7e9, "state": "training"}
_BEAT |= {"reason": None, "tokens_per_second": 10.0, "host": "vm", "pid": 7, "num_train_steps": 9}
_EVENT = {"event": "started", "time": 1.7e9, "host": "vm", "pid": 7, "global_step": 0}
_STEP = {"step": 5, "time": 1.7e9, "loss": 2.0, "masked_lm_accuracy": 0.5}
_EVALUATION = fake_run.evaluation(5)
_RATE = {"fits": True, "tokens_per_second_per_core": 1e4}
_FOLDER = {"model_type": "big_bird"}
_FIGURES = {"chips": [{"chip": "v3", **_RATE}]}

_READERS = [
    _Reader("heartbeat.json", run.HeartbeatRecord, _BEAT, run_log.read_heartbeat),
    _Reader("events.jsonl", run.EventRecord, _EVENT, run_log.read_events),
    _Reader("metrics.jsonl", run.MetricsRecord, _STEP, run_log.read_metrics),
    _Reader("eval.jsonl", run.Evaluation, _EVALUATION, _evaluations),
    _Reader("model.ckpt-3.json", Meta, _SIDECAR, lambda f: CheckpointStore(f).read_meta(3)),
    _Reader("r/supervisor/state.json", RunState, _STATE, lambda f: _of_run(f).load_state()),
    _Reader("r/supervisor/exit.json", ExitReport, _EXIT, lambda f: _of_run(f).exit_report()),
    _Reader("r/supervisor/launch.json", LaunchedRun, _LAUNCHED, lambda f: read_run(f, "r")),
    _Reader("x.json", plan.Results, _FIGURES, lambda f: plan.load_results(f"{f}/x.json")),
    _Reader("config.json", hf_folder.FolderConfig, _FOLDER, hf_folder.read_config),
]


def _wrong(value):
    """The value with a list of lists, which no field takes, in each of its places."""
    yield [[0]]
    if isinstance(value, list) and value:
        yield from ([each, *value[1:]] for each in _wrong(value[0]))
    if isinstance(value, dict):
        yield from ({**value, key: each} for key in value for each in _wrong(value[key]))


@pytest.mark.parametrize("reader", _READERS, ids=[reader.path for reader in _READERS])
def test_what_the_type_does_not_take_is_one_line_that_names_the_file(reader, tmp_path):
    reader.write(tmp_path, _encoded(reader.sample))
    assert reader.read(str(tmp_path))
    cases = [*_wrong(reader.sample)]
    cases += [{**reader.sample, name: [[0]]} for name in get_type_hints(reader.kind)]
    for data in (*map(_encoded, cases), b"[" * 10_000, "{}".encode("utf-16")):
        reader.write(tmp_path, data)
        with pytest.raises(BadInput, match=Path(reader.path).name) as refused:
            reader.read(str(tmp_path))
        assert "\n" not in str(refused.value)
