"""Files on disk or on gs://, by one set of functions, without TensorFlow."""

from __future__ import annotations

import os


def read_bytes(path: str) -> bytes:
    with open(os.path.expanduser(path), "rb") as file:
        return file.read()
