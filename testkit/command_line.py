"""Run `bigbird-ja` or another program in a child process."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from testkit import ROOT


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self):
        """Parsed standard output, which must be one line of JSON."""
        assert self.stdout.count("\n") == 1, self.stdout
        return json.loads(self.stdout)


def run_cli(*arguments, env=None, timeout=240.0):
    """Run `python -m bigbird_ja ARGUMENTS`, with `env` added to the environment."""
    return run_module("bigbird_ja", *arguments, env=env, timeout=timeout)


def run_module(module, *arguments, env=None, timeout=240.0):
    """Run `python -m MODULE ARGUMENTS`."""
    return run(sys.executable, "-m", module, *arguments, env=env, timeout=timeout)


def run(*words, env=None, cwd=ROOT, timeout=240.0):
    """Run any program in the checkout, with `env` added to the environment."""
    how = {"capture_output": True, "text": True, "errors": "surrogateescape", "timeout": timeout}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environ, **how)
    return Ended(done.returncode, done.stdout, done.stderr)
