"""The immediate exit after an error. Registered callbacks get the error before the exit."""

from bigbird_ja.errors import Stalled
from bigbird_ja.train.exit import ProcessExit


def test_registered_calls_get_the_error_before_the_process_ends():
    seen = []
    exit_process = ProcessExit(lambda error: seen.append(("end", error)))
    for name in ("first", "second"):
        exit_process.add_callback(lambda error, name=name: seen.append((name, error)))
    error = Stalled("no step finished")
    exit_process(error)
    assert seen == [("first", error), ("second", error), ("end", error)]
