"""Results of `preflight` as a file, for `plan` and for people. Needs neither TensorFlow nor jax."""

from __future__ import annotations

import json
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import outputs

is_ours = outputs.is_json_with("chips", "config_fingerprint")


def save(path: str, result: dict[str, Any]) -> None:
    """Writes what `preflight --json` prints."""
    outputs.write(path, json.dumps(result, indent=1).encode())


def load(path: str) -> list[dict[str, Any]]:
    """The chips of a result, each with the keys that `preflight --json` gives it.

    Raises:
        BadInput: no such file, or not a result of `preflight --output`.
    """
    try:
        result = json.loads(storage.read_bytes(path))
        chips = result["chips"]
        assert all(isinstance(chip["chip"], str) for chip in chips)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file: `bigbird-ja preflight --output {path}`") from error
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise BadInput(f"{path}: not a result of `bigbird-ja preflight --output`") from error
    return list(chips)
