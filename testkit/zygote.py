"""Run `bigbird-ja` commands as real processes that start in two seconds instead of eight.

`multiprocessing`'s fork server imports TensorFlow once, never uses it, and forks a child for each
command. The pytest process itself must not fork: other tests have used TensorFlow in it.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from testkit import ROOT, instants


@dataclass
class Ended:
    """Output and exit status of a command.

    The status is minus the signal, or None if the command was killed after its timeout.
    """

    status: int | None
    out: str
    err: str

    @property
    def result(self):
        """Return the `--json` results, the only line on standard output."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Command:
    """A running command.

    Args:
        process: that runs it.
        directory: holds its `out` and `err`.
    """

    def __init__(self, process, directory):
        self._process, self._directory = process, directory
        self.pid, self.hung = process.pid, directory / "hung"

    def wait(self, patience=None):
        """Wait for its end, and kill it and its children after `patience` seconds."""
        self._process.join(patience)
        status = self._process.exitcode
        if status is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.join()
        return Ended(status, self.read("out"), self.read("err"))

    def read(self, stream):
        """Read its output so far, of `out` or `err`."""
        return (self._directory / stream).read_text(errors="replace")

    def is_over(self):
        """Return whether it has ended.

        It may still be waited for.
        """
        return not self._process.is_alive()

    def send(self, number):
        """Send a signal."""
        os.kill(self.pid, number)

    def wait_for(self, file, text="", seconds=120.0):
        """Wait until a file contains a text."""
        deadline = time.monotonic() + seconds
        while not (file.exists() and text in file.read_text(errors="replace")):
            assert time.monotonic() < deadline, f"{file} never held {text!r}: {self.read('err')}"
            time.sleep(0.05)


class Zygote:
    """Starts commands.

    Args:
        directory: for the commands' output.
        environ: of the process that imports TensorFlow.
    """

    def __init__(self, directory, environ):
        self._directory, self._count = directory, 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["testkit.preloaded"])
        with mock.patch.dict(os.environ, {**environ, "PYTHONPATH": str(ROOT)}, clear=True):
            forkserver.ensure_running()

    def start(self, *arguments, **how):
        """Start `bigbird-ja ARGUMENTS`.

        Args:
            how: `hang_at=["step", 5]` makes `pretrain` hang at the fifth instant of that name
                (`testkit.instants`) and create the file `hung`, until that is removed; there its
                --max_train_minutes are over, and all instants are written to the file `marks`;
                `limits={"FSIZE": bytes}` sets resource limits ("AS": on top of what the process has
                when it starts); `cwd` is the working folder; `environ` adds variables.
        """
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        for name in ("out", "err"):
            (directory / name).touch()
        process = self._context.Process(target=_run, args=(arguments, directory), kwargs=how)
        process.start()
        return Command(process, directory)

    def run(self, *arguments, **how):
        """Start a command and wait for its end."""
        return self.start(*arguments, **how).wait()


def _run(arguments, directory, hang_at=None, limits=None, cwd=None, environ=None):
    from bigbird_ja import cli

    os.environ.update(environ or {})
    os.setpgid(0, 0)
    # The tests may run under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(directory / name, os.O_WRONLY), number)
    os.chdir(cwd or ROOT)
    for name, value in (limits or {}).items():
        if name == "AS":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            value += pages * resource.getpagesize()
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    if hang_at:
        _hang(directory, *hang_at)
    status: object = 1
    try:
        cli.main(list(arguments))
    except SystemExit as end:
        status = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(str(status)))


def _hang(directory, name, times):
    """Stop `pretrain` at an instant while the file `hung` exists."""
    count, limits, hung = 0, instants.Limits(), directory / "hung"

    def mark(phase):
        nonlocal count
        with open(directory / "marks", "a", encoding="ascii") as file:
            file.write(f"{phase} {time.time()}\n")
        count += phase == name
        if phase == name and count == times:
            limits.end()
            hung.touch()
            while hung.exists():
                time.sleep(0.02)

    instants.watch(mark, limits)
