"""Runs `bigbird-ja`, or another module, in a child process, as a user's script would."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from testkit import ROOT


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self):
        """Standard output, which `--json` makes one line with one object."""
        assert self.stdout.count("\n") == 1, self.stdout
        return json.loads(self.stdout)


def run_cli(*arguments, env=None, timeout=240.0):
    """Runs `python -m bigbird_ja ARGUMENTS`; `env` is added to this process's environment."""
    return run_module("bigbird_ja", *arguments, env=env, timeout=timeout)


def run_module(module, *arguments, env=None, timeout=240.0):
    """Runs `python -m MODULE ARGUMENTS`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **(env or {})},
        timeout=timeout,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
