"""Run a function of this module as if it were a command of `bigbird-ja`.

Run `python -m testkit.any_command NAME [FLAG ...]`, where NAME is the function. Flags, streams,
signals and exit statuses are handled as those of real commands.
"""

import atexit
import contextlib
import hashlib
import itertools
import os
import sys
import tempfile
import threading
import time
import types
from dataclasses import dataclass

from bigbird_ja import cli
from bigbird_ja.cli import app
from bigbird_ja.process import cleanup, console
from bigbird_ja.process.workers import run_tasks
from bigbird_ja.storage.disk import create_scratch_directory

READY = "ready"


@dataclass(frozen=True)
class Results:
    """Result of a command."""

    count: int | None = None


def work():
    """Write to standard output and standard error, and return a result."""
    print("a table")
    # Write to the descriptor, as a C library does even if `sys.stdout` is closed.
    with contextlib.suppress(OSError):
        os.write(1, b"a line of a C library\n")
    console.log("a warning")
    return {"count": 3}


def wait():
    """Wait for a signal."""
    console.log(READY)
    return _forever()


def _forever():
    while True:
        time.sleep(0.01)


def workers():
    """Run an endless sequence of tasks in a pool of two workers."""
    for _ in run_tasks(time.sleep, itertools.repeat(0.1), 2, console.log, (READY,)):
        pass


def swallow():
    """Suppress any exception in the first sleep, as some libraries do, and then wait forever."""
    with contextlib.suppress(BaseException):
        console.log(READY)
        time.sleep(60)
    return _forever()


def translate():
    """Replace any exception, also a KeyboardInterrupt, by a RuntimeError, as some libraries do."""
    try:
        console.log(READY)
        time.sleep(60)
    except BaseException:
        raise RuntimeError("UNKNOWN: callback failed") from None
    return {}


def native():
    """Create a directory and temporary files, and call native code that does not return."""
    with (
        create_scratch_directory() as directory,
        tempfile.NamedTemporaryFile(prefix="any-command-") as own,
        cleanup.remove_on_exit(own.name),
    ):
        library = tempfile.NamedTemporaryFile(prefix="any-command-", delete=False)  # noqa: SIM115
        # Remove this file by `atexit`, as TensorFlow removes its temporary files.
        atexit.register(os.unlink, library.name)
        console.log(f"{directory} {own.name} {library.name}")
        # Log READY from another thread when pbkdf2 runs. pbkdf2 releases the GIL.
        threading.Timer(0.3, console.log, (READY,)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    return {}


def chatter():
    """Print text until the reader of standard output closes the pipe."""
    while True:
        print("東京" * 100)


def main():
    """Run the function that the first argument names, with the other arguments as flags."""
    function = globals()[sys.argv[1]]
    command = types.SimpleNamespace(
        __doc__="A command.",
        EXAMPLE="bigbird-ja demo",
        define_flags=lambda flags: flags.integer("count", 3, ".", low=0, high=100),
        run=lambda args: Results(**(function() or {})),
    )
    app.load_command = lambda name: command  # type: ignore[assignment]
    cli.main(["demo", *sys.argv[2:]])


if __name__ == "__main__":
    main()
