"""The boundary through which files are read: one line of BadInput for anything else."""

import dataclasses
import json
from dataclasses import asdict
from typing import Annotated, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.plan import estimate
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run import records
from bigbird_ja.run.checkpoints import CheckpointStore, StoredFile
from bigbird_ja.run.checkpoints import Meta as CheckpointMeta
from bigbird_ja.storage import decode
from tests.report import fake_run


@dataclasses.dataclass(frozen=True)
class _File:
    bytes: decode.Count


@dataclasses.dataclass(frozen=True)
class _Record:
    step: Annotated[int, Meta(ge=0, le=10**9)]
    loss: float | None = None
    files: dict[str, _File] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON: Input data was truncated: make it again"),
        (b'{"step": 3', "not JSON: Input data was truncated: make it again"),
        (b"[]", "Expected `object`, got `array`: make it again"),
        (b"{}", "Object missing required field `step`: make it again"),
        (b'{"step": "3"}', "step: Expected `int`, got `str`: make it again"),
        (b'{"step": -1}', "step: Expected `int` >= 0: make it again"),
        (b'{"step": 1, "loss": []}', "loss: Expected `float | null`, got `array`"),
        (b'{"step": 1, "loss": NaN}', "not JSON: JSON is malformed: invalid character (byte 20)"),
        (b'{"step": ' + b"9" * 5000 + b"}", "step: Integer value out of range"),
        (b'{"step": 1, "files": {"a": {"bytes": null}}}', "files[...].bytes: Expected `int`"),
        (b'{"step": 1, "files": {"a": {}}}', "files[...]: Object missing required field `bytes`"),
        (b'{"step": 1, "x": ' + b"[" * 9000 + b"]" * 9000 + b"}", "lists or objects nested too"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_anything_else_is_one_line_that_says_file_key_and_what_was_expected(data, message):
    with pytest.raises(BadInput) as caught:
        decode.decode_json(data, _Record, "f.json", "make it again")
    assert str(caught.value).startswith(f"f.json: {message}")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(": make it again")


@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE+-ntrufalse ').map(str.encode)
)
def test_no_bytes_end_in_anything_but_a_record_or_one_line(data):
    try:
        decode.decode_json(data, _Record, "x")
    except BadInput as error:
        assert "\n" not in str(error)


def decode_lines(data):
    return [record for _, record in decode.numbered_lines(data, _Record, "x")]


def test_lines_leave_out_what_a_kill_leaves_and_nothing_else():
    whole = b'{"step": 1}\n{"step": 2}\n'
    for cut in (b'{"step": 3, "lo', b'{"step": 3, "loss": 1.'):
        assert [record.step for record in decode_lines(whole + cut)] == [1, 2]
    middle = b'{"step": 1}\n{"st\n\n{"step": 2}\n' + b"\0" * 50 + b'\n\0\0{"step": 3}'
    assert [record.step for record in decode_lines(middle)] == [1, 2, 3]
    assert decode_lines(b"") == []


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"hello",
        b'{"step": "2"}',
        b'{"step": NaN}',
        b'{"step": 1}x',
        b"\xff\xfe",
        b'{"step": 1, "x": ' + b"[" * 10_000,
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_foreign_line_is_refused_by_its_number(line):
    with pytest.raises(BadInput, match=r"^x: line 2: "):
        decode_lines(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: not YAML: 'a' is written twice: keep one"),
        ("[" * 10_000, "nested too deeply"),
        ("a: 2001-13-01", "a value is none of its kind"),
        ("a: " + "9" * 5000, "a value is none of its kind"),
        ("a: !!bool maybe", "a value is none of its kind"),
        ("a: !!python/object/apply:os.system ['true']", "not YAML: could not determine"),
        ("a:\n  b: 1\n c: [\n", "line 3, column 2: not YAML: while parsing a block mapping, "),
        ("a: \x00", "special characters are not allowed, position 3"),
        ("--- 1\n--- 2\n", "not YAML: expected a single document"),
        ("a" * 300_000, "more than 262,144 bytes, which makes no sense here"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_surprises_in_yaml_is_refused(text, message):
    with pytest.raises(BadInput, match=message) as caught:
        decode.read_yaml(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml: ") and "\n" not in str(caught.value)


@given(st.text(alphabet="ab:-{}[]&*!?|>'\"%@`#,0xe.~\n \t", max_size=40))
def test_no_text_ends_in_anything_but_a_value_or_one_line(text):
    try:
        decode.read_yaml(text, "x")
    except BadInput as error:
        assert "\n" not in str(error)


_META = CheckpointMeta(
    3, "c", "d", 1.5, 10, 0, 2.0, 3, 4, "0" * 64, {"a": StoredFile(1, "AAAAAA==")}
)


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
    "model.ckpt-3.json": (CheckpointMeta, asdict(_META), lambda f: CheckpointStore(f).read_meta(3)),
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
