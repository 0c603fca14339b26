"""Start the processes of a pod, with two virtual CPU devices each."""

import socket

# Timeout in seconds for the end of a process. A process whose peer was killed ends only after
# `pod.HEARTBEAT_SECONDS`, and later on a busy machine.
TIMEOUT = 150.0


def environ(devices=2):
    """Build the environment variables that give a process `devices` virtual CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {"XLA_FLAGS": f"{flags} --xla_llvm_disable_expensive_passes=true"}


def free_address():
    """Find a free HOST:PORT on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def start(zygote, processes, *arguments, hang=None):
    """Start `bigbird-ja ARGUMENTS` as each process of a pod.

    Args:
        zygote: object that starts the processes.
        processes: number of processes. With 1, the process does not belong to a pod.
        hang: argument `hang_at` of some processes, by their index.
    """
    address, started = free_address(), []
    for index in range(processes):
        here = place(address, processes, index) if processes > 1 else environ()
        how = {"environ": here, "hang_at": (hang or {}).get(index)}
        started.append(zygote.start(*arguments, **how))
    return started


def place(address, processes, index):
    """Build the environment variables of one process of a pod."""
    where = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": processes, "PROCESS_ID": index}
    return {**environ(), **{f"JAX_{name}": str(value) for name, value in where.items()}}


def wait(commands, *statuses):
    """Wait until all processes end, and compare their exit statuses with `statuses`, if given.

    A process that does not end before `TIMEOUT` is killed, and its status is None.
    """
    ended = [command.wait(TIMEOUT) for command in commands]
    assert not statuses or [e.status for e in ended] == list(statuses), [e.err for e in ended]
    return ended
