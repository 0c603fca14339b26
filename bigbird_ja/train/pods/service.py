"""`python -m bigbird_ja.train.pods.service ADDRESS PROCESSES`: JAX's coordination service alone.

Ends when it is told so on its standard input. Where the process that started it is killed, it stays
for LINGER_SECONDS: time for the others to hear of that and to end by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LINGER_SECONDS = 60.0


def main(address: str, processes: str) -> None:
    """Serves."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the processes that it serves answer to these
    from bigbird_ja.train.pods.runtime import runtime_library

    service = runtime_library().get_distributed_runtime_service(address, int(processes))
    print("ready", flush=True)
    os.close(1)
    if not sys.stdin.read():
        time.sleep(LINGER_SECONDS)
    del service
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
