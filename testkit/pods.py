"""Starts the processes of a pod, with two virtual CPU devices each."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from testkit.zygote import Command, Ended, Zygote

DEVICES = 2  # of each process
ENVIRON = {
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}"
    " --xla_llvm_disable_expensive_passes=true"
}
PATIENCE = 150.0  # more than `pod.HEARTBEAT_SECONDS`, for a machine that has other work


def free_address() -> str:
    """HOST:PORT on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def start(
    zygote: Zygote, processes: int, *arguments: str, hang: dict[int, Any] | None = None, **how: Any
) -> list[Command]:
    """Starts `bigbird-ja ARGUMENTS` as all processes of a pod.

    Args:
        hang: `hang_at` of single processes.
        how: as `Zygote.start` takes it.
    """
    address = free_address()
    return [
        zygote.start(
            *arguments, *place(address, processes, index), environ=ENVIRON,
            hang_at=(hang or {}).get(index), **how,
        )
        for index in range(processes)
    ]  # fmt: skip


def place(address: str, processes: int, index: int) -> list[str]:
    """The flags that say which process of a pod this is."""
    return [
        f"--coordinator_address={address}", f"--num_processes={processes}", f"--process_id={index}",
    ]  # fmt: skip


def wait(commands: Sequence[Command]) -> list[Ended]:
    """Waits for the end of all; one that does not come has the status None."""
    return [command.wait(PATIENCE) for command in commands]
