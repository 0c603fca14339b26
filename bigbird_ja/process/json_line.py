"""One record as one line of JSON, fit to leave the process: for files of a run and for `--json`."""

from __future__ import annotations

import json
import math
from typing import Any

from bigbird_ja.process.redaction import redact


def encode(record: dict[str, Any]) -> bytes:
    """The line, in UTF-8, with its newline; credentials are taken out.

    What JSON cannot hold becomes what it can: NaN and infinities null, NumPy's numbers and arrays
    plain ones, a file name that is not UTF-8 an escape.

    Raises:
        TypeError: something else that is not JSON.
    """
    text = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
