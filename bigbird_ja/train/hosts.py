"""Who reads and who writes on several hosts: pure functions of (host, hosts).

One process drives all hosts of a pod slice; the input function runs once per host. What is
durable (checkpoints, logs) is written by the driver alone.
"""

from __future__ import annotations

from bigbird_ja.process.errors import BadInput


def is_writer(host: int, hosts: int) -> bool:
    """Whether `host` writes checkpoints and logs: exactly one of all does."""
    _check(host, hosts)
    return host == 0


def host_places(global_batch: int, host: int, hosts: int) -> range:
    """Places of each global batch that `host` reads and feeds to its cores.

    Raises:
        BadInput: the batch does not divide.
    """
    _check(host, hosts)
    if global_batch % hosts:
        raise BadInput(f"a batch of {global_batch} cannot be divided over {hosts} hosts")
    return range(host, global_batch, hosts)


def replica_ids(cores: int, host: int, hosts: int) -> range:
    """The cores of `host`, in the order in which its part of a batch is dealt to them."""
    _check(host, hosts)
    if cores % hosts:
        raise BadInput(f"{cores} cores cannot be divided over {hosts} hosts")
    own = cores // hosts
    return range(host * own, (host + 1) * own)


def check_divides(global_batch: int, cores: int, micro_batches: int) -> int:
    """Sequences per core and micro-batch.

    Raises:
        BadInput: the batch does not divide; the nearest ones that do are named.
    """
    unit = cores * micro_batches
    if global_batch % unit:
        below, above = global_batch // unit * unit, -(-global_batch // unit) * unit
        nearest = f"{below} or {above}" if below else f"{above}"
        raise BadInput(
            f"training.global_batch_size={global_batch} is not divisible by {cores} cores x"
            f" {micro_batches} micro-batches (training.gradient_accumulation_steps): use {nearest}"
        )
    return global_batch // unit


def _check(host: int, hosts: int) -> None:
    if not 0 <= host < hosts:
        raise ValueError(f"host {host} of {hosts}")
