"""Runs `bigbird-ja` commands as real processes that start in two seconds instead of eight.

`python -m testkit.zygote` imports TensorFlow once, never uses it, and forks a child per request
(a line of JSON on its standard input). `Zygote` is the test's side of it. The pytest process itself
must not fork: other tests have used TensorFlow in it.
"""

import contextlib
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from testkit import ROOT
from testkit.clocked import Limits


@dataclass
class Ended:
    """A command's end: what it has printed, and its status.

    That is minus the signal, or None where it had to be killed after the patience given.
    """

    status: int | None
    out: str
    err: str

    @property
    def result(self):
        """The `--json` results: all that there is on standard output."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Command:
    """A running command.

    Args:
        zygote: that forked it.
        pid: of the process.
        directory: holds its `out` and `err`.
    """

    def __init__(self, zygote, pid, directory):
        self._zygote, self.pid, self._directory = zygote, pid, directory
        self.hung = directory / "hung"

    def wait(self, patience=None):
        """Waits for its end; kills it and its children after `patience` seconds."""
        status = self._zygote.ask({"wait": self.pid, "patience": patience})["status"]
        return Ended(status, self.read("out"), self.read("err"))

    def read(self, stream):
        """Read what it has printed to `out` or `err` so far."""
        return (self._directory / stream).read_text(errors="replace")

    def is_over(self):
        """Tell whether it has ended; it may be waited for still."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def send(self, number):
        """Sends a signal."""
        os.kill(self.pid, number)

    def wait_for(self, file, text="", seconds=120.0):
        """Waits until a file exists and contains a text."""
        deadline = time.monotonic() + seconds
        while not (file.exists() and text in file.read_text(errors="replace")):
            assert time.monotonic() < deadline, f"{file} never held {text!r}: {self.read('err')}"
            time.sleep(0.05)


class Zygote:
    """Starts commands; use as a context manager.

    Args:
        directory: for the commands' output.
        environ: of the process that imports TensorFlow.
    """

    def __init__(self, directory, environ):
        self._directory, self._environ, self._count = directory, dict(environ), 0

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testkit.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environ,
            cwd=ROOT,
            text=True,
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def ask(self, request):
        """One request, one answer."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments, **how):
        """Starts `bigbird-ja ARGUMENTS`.

        Args:
            how: `hang_at=["step", 5]` makes `pretrain` hang at the fifth mark of that name and
                create the file `hung`, until that is removed, and there its --max_train_minutes are
                over, and all marks are written to the file `marks`; `limits={"FSIZE": bytes}` sets
                resource limits ("AS": on top of what the process has when it starts); `cwd` is the
                working folder; `environ` adds variables.
        """
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        request = {"arguments": arguments, "directory": str(directory), **how}
        return Command(self, self.ask(request)["pid"], directory)

    def run(self, *arguments, **how):
        """Starts a command and waits for its end."""
        return self.start(*arguments, **how).wait()


def main():
    """The process that forks."""
    import_trainer()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = {"status": _wait(request["wait"], request.get("patience"))}
        else:
            answer = {"pid": os.fork()}
            if answer["pid"] == 0:
                _command(**request)
        print(json.dumps(answer), flush=True)


def import_trainer():
    """Imports what a trainer needs, without running any of it."""
    from bigbird_ja.cli import prepare_tensorflow

    prepare_tensorflow(os.environ)
    import tensorflow  # noqa: F401

    from bigbird_ja.data import check, pipeline  # noqa: F401
    from bigbird_ja.train import progress, train  # noqa: F401

    if importlib.util.find_spec("tensorflow_estimator") is not None:
        import tensorflow_estimator.python.estimator.tpu.tpu_estimator  # noqa: F401

        from bigbird_ja.train.engines import estimator  # noqa: F401
    if importlib.util.find_spec("jax") is not None:
        from bigbird_ja.train.engines import pjrt  # noqa: F401


def _wait(pid, patience):
    """The exit status of a child; None where it was killed after `patience` seconds."""
    if patience is None:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _command(arguments, directory, hang_at=None, limits=None, cwd=None, environ=None):
    status = 1
    with contextlib.suppress(BaseException):
        os.environ.update(environ or {})
        os.setpgid(0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if cwd is not None:
            os.chdir(cwd)
        for name, value in (limits or {}).items():
            if name == "AS":
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                value += pages * resource.getpagesize()
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        status = _run(arguments, directory, hang_at)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _run(arguments, directory, hang_at):
    from bigbird_ja import cli

    count = 0
    limits = Limits()

    def mark(phase, step=0):
        nonlocal count
        assert hang_at is not None
        with open(f"{directory}/marks", "a", encoding="ascii") as file:
            file.write(f"{phase} {step} {time.time()}\n")
        count += phase == hang_at[0]
        if phase == hang_at[0] and count == hang_at[1]:
            hung = Path(directory, "hung")
            limits.end()
            hung.touch()
            while hung.exists():
                time.sleep(0.02)

    if hang_at:
        limits.give_to_pretrain(mark)
    try:
        cli.main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("main returned")


if __name__ == "__main__":
    main()
