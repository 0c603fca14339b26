"""Decoding of files raises BadInput with one line for any damage."""

import dataclasses
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode


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
        (b'{"step": 3', "not JSON: Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "Object missing required field `step`"),
        (b'{"step": "3"}', "step: Expected `int`, got `str`"),
        (b'{"step": -1}', "step: Expected `int` >= 0"),
        (b'{"step": 1, "loss": NaN}', "not JSON: JSON is malformed: invalid character (byte 20)"),
        (b'{"step": ' + b"9" * 5000 + b"}", "step: Integer value out of range"),
        (b'{"step": 1, "files": {"a": {"bytes": null}}}', "files[...].bytes: Expected `int`"),
        (b'{"step": 1, "x": ' + b"[" * 9000 + b"]" * 9000 + b"}", "lists or objects nested too"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_content_of_another_type_is_one_line_with_file_key_and_expected_value(data, message):
    with pytest.raises(BadInput) as caught:
        decode.decode_json(data, _Record, "f.json", "make it again")
    assert str(caught.value).startswith(f"f.json is not valid ({message}")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("): make it again")


@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE+-ntrufalse ').map(str.encode)
)
def test_any_bytes_are_a_record_or_refused_in_one_line(data):
    try:
        decode.decode_json(data, _Record, "x")
    except BadInput as error:
        assert "\n" not in str(error)


def decode_lines(data):
    return [record for _, record in decode.decode_lines(data, _Record, "x")]


def test_lines_that_a_kill_cut_are_skipped():
    whole = b'{"step": 1}\n{"step": 2}\n'
    for cut in (b'{"step": 3, "lo', b'{"step": 3, "loss": 1.'):
        assert [record.step for record in decode_lines(whole + cut)] == [1, 2]
    middle = b'{"step": 1}\n{"st\n\n{"step": 2}\n' + b"\0" * 50 + b'\n\0\0{"step": 3}'
    assert [record.step for record in decode_lines(middle)] == [1, 2, 3]
    assert decode_lines(b"") == []


@pytest.mark.parametrize(
    "line",
    [b"null", b'{"step": "2"}', b'{"step": 1}x', b"\xff\xfe", b'{"step": 1, "x": ' + b"[" * 10_000],
    ids=lambda value: str(value)[:20],
)
def test_a_foreign_line_is_refused_with_its_number(line):
    with pytest.raises(BadInput, match=r"^x: line 2: "):
        decode_lines(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1 is not YAML: 'a' occurs twice .keep one"),
        ("[" * 10_000, "nested too deeply"),
        ("a: 2001-13-01", "a value is invalid"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "line 1, column 4 is not YAML: could not determine",
        ),
        ("a:\n  b: 1\n c: [\n", "line 3, column 2 is not YAML: while parsing a block mapping, "),
        ("--- 1\n--- 2\n", "line 2, column 1 is not YAML: expected a single document"),
        ("a" * 300_000, "more than 262,144 bytes, too many for such a file"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unusual_yaml_is_refused_in_one_line(text, message):
    with pytest.raises(BadInput, match=message) as caught:
        decode.read_yaml(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml ") and "\n" not in str(caught.value)


@given(st.text(alphabet="ab:-{}[]&*!?|>'\"%@`#,0xe.~\n \t", max_size=40))
def test_any_text_is_a_yaml_value_or_refused_in_one_line(text):
    try:
        decode.read_yaml(text, "x")
    except BadInput as error:
        assert "\n" not in str(error)
