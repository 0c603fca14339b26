"""Run `bigbird-ja` commands as real processes that start in two seconds instead of eight.

The fork server of `multiprocessing` imports TensorFlow without using it, and forks a process for
each command. The process of pytest must not fork, since other tests have used TensorFlow in it.
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

    The status is `-N` if signal N ended the command, and None if it was killed after a timeout.
    """

    status: int | None
    out: str
    err: str

    @property
    def result(self):
        """Parsed results of `--json`, which must be the only line on standard output."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Command:
    """Command that runs in a forked process.

    Args:
        process: process of the command.
        directory: folder with its output, in the files `out` and `err`.
    """

    def __init__(self, process, directory):
        self._process, self._directory = process, directory
        self.pid, self.hung = process.pid, directory / "hung"

    def wait(self, timeout=None):
        """Wait until the command ends. After `timeout` seconds, kill it and its child processes."""
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.join()
        return Ended(status, self.read("out"), self.read("err"))

    def read(self, stream):
        """Return the output so far on the stream "out" or "err"."""
        return (self._directory / stream).read_text(errors="replace")

    def is_over(self):
        """Return whether the command has ended."""
        return not self._process.is_alive()

    def send(self, number):
        """Send a signal to the command."""
        os.kill(self.pid, number)

    def wait_for(self, file, text="", seconds=120.0):
        """Wait until a file contains a text."""
        deadline = time.monotonic() + seconds
        while not (file.exists() and text in file.read_text(errors="replace")):
            assert time.monotonic() < deadline, f"{file} never held {text!r}: {self.read('err')}"
            time.sleep(0.05)


class Zygote:
    """Starter of commands, which are forks of a process that has imported TensorFlow.

    Args:
        directory: folder for the output of the commands.
        environ: environment of the process that imports TensorFlow.
    """

    def __init__(self, directory, environ):
        self._directory, self._count = directory, 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["testkit.preloaded"])
        with mock.patch.dict(os.environ, {**environ, "PYTHONPATH": str(ROOT)}, clear=True):
            forkserver.ensure_running()

    def start(self, *arguments, **how):
        """Start `bigbird-ja ARGUMENTS`.

        Keyword arguments:
            hang_at: with `["step", 5]`, `pretrain` pauses at the fifth instant of the phase `step`
                (see `testkit.instants`). It creates the file `hung`, and waits until this file is
                removed. At the same instant, the time limit of --max_train_minutes expires. The
                file `marks` lists all instants.
            limits: resource limits, such as `{"FSIZE": bytes}`. The limit "AS" does not include the
                address space that the process has when it starts.
            cwd: working directory.
            environ: additional environment variables.
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
        """Start a command, and wait until it ends."""
        return self.start(*arguments, **how).wait()


def _run(arguments, directory, hang_at=None, limits=None, cwd=None, environ=None):
    from bigbird_ja import cli

    os.environ.update(environ or {})
    os.setpgid(0, 0)
    # If the tests run under nohup, they ignore SIGHUP, and the command would ignore it, too.
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
    """Let `pretrain` create the file `hung` at an instant, and pause until the file is removed.

    The instant is the `times`-th one of the phase `name`.
    """
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
