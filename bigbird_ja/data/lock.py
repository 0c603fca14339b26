"""One `make-data` at a time for an output directory."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bigbird_ja import storage
from bigbird_ja.console import log
from bigbird_ja.lease import Lease, held

NAME = ".make-data.lock"


def exclusive(directory: str) -> AbstractContextManager[Lease]:
    """Holds the directory's lease; its `check` is to be asked before the manifest is written.

    Raises:
        BadInput: another process holds it.
    """

    def busy(owner: str) -> str:
        return (
            f"{directory}: {owner} is making data there: wait for it to end, or choose another"
            " --output_dir"
        )

    return held(Lease(storage.join(directory, NAME), busy, log))
