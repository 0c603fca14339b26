"""The google-cloud-storage client: one per thread and process, without credentials in tests."""

from __future__ import annotations

import os
import threading
from typing import Any

from bigbird_ja.storage.urls import split_remote

_local = threading.local()


def client() -> Any:
    """The client of this thread (its connections are not shared with a forked child).

    `STORAGE_EMULATOR_HOST` sends it, anonymous, to an emulator instead of Google.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    key = (os.getpid(), emulator)
    if getattr(_local, "key", None) != key:
        _local.client, _local.key = _new_client(emulator), key
    return _local.client


def _new_client(emulator: str | None) -> Any:
    from google.auth import default
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    project = os.environ.get("GOOGLE_CLOUD_PROJECT")
    if emulator:
        credentials: Any = AnonymousCredentials()
    else:
        credentials, found = default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        project = project or found
    # Objects need no project, but the client insists on one.
    return storage.Client(project=project or "unset", credentials=credentials)


def blob(path: str) -> Any:
    """The object of a gs:// path, nothing asked of the bucket yet."""
    bucket, name = split_remote(path)
    return client().bucket(bucket).blob(name)
