"""The exceptions that programs can catch."""

import pickle

import pytest

from bigbird_ja import errors
from bigbird_ja.errors import BadInput, CommandError, Refused


def test_bad_input_is_a_value_error_and_keeps_its_status():
    assert issubclass(Refused, BadInput) and issubclass(BadInput, CommandError)
    with pytest.raises(ValueError, match="no such file") as caught:
        raise BadInput("no such file", {"step": 3})
    assert (caught.value.status, caught.value.reason) == (2, "bad_input")
    assert caught.value.results == {"step": 3}


def test_each_reason_returns_its_error_and_each_error_crosses_processes():
    for reason, status in errors.STATUS_OF_REASON.items():
        if reason != "finished":
            error = pickle.loads(pickle.dumps(errors.make_error(reason, "a line")))
            assert (error.reason, error.status, str(error)) == (reason, status, "a line")
    assert type(errors.make_error("unknown", "a line")) is CommandError
