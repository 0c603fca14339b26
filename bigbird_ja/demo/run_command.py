"""Run of a bigbird-ja command in its own process."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bigbird_ja.errors import make_error
from bigbird_ja.process.cleanup import kill_on_exit
from bigbird_ja.process.console import log
from bigbird_ja.process.workers import make_exit_error


def run_command(
    arguments: Sequence[str], kill_when: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Run one command in its own process, show its output, and return its `--json` results.

    Args:
        arguments: arguments of the command line.
        kill_when: callback that is polled. When it returns true, the command is killed with
            SIGKILL, and the result is {}.

    Raises:
        CommandError: The command failed. The error contains its exit status and message.
        RuntimeError: The command ended before `kill_when` returned true.
    """
    print(f"$ bigbird-ja {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with kill_on_exit(process):
        while kill_when and process.poll() is None:
            time.sleep(0.05)
            if kill_when():
                process.kill()
                process.wait()
        out, _ = process.communicate()
    if kill_when and process.returncode == -signal.SIGKILL:
        log(f"SIGKILL sent to process {process.pid}")
        return {}
    subject = f"`bigbird-ja {arguments[0]}`"
    results: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        results = json.loads(out)
    if not results:
        advice = "close other programs and rerun the same command"
        raise make_exit_error(process.returncode, (), subject, advice)
    if process.returncode:
        raise make_error(str(results.get("reason")), f"{subject}: {results.get('error')}")
    if kill_when:
        raise RuntimeError(f"{subject} ended before it could be killed")
    return results
