"""Pack blocks on a Ray cluster, for `make-data --runner ray` (extra `ray`).

This machine reads the corpus, sends its blocks to actors and writes what they return; so the
machines need not share a disk, and the bytes are those of one machine.
"""

import logging
import os
import signal
from collections.abc import Callable, Generator, Iterable
from typing import Any

from bigbird_ja.data import blocks
from bigbird_ja.data.blocks import Block
from bigbird_ja.data.manifest import DataSpec
from bigbird_ja.process.console import log, shortened, waiting
from bigbird_ja.process.errors import BadInput, CommandError, StorageError
from bigbird_ja.text.tokenizer import Tokenizer

_MOST_RESTARTS = 5  # of an actor whose process or machine is lost


def pack_blocks(
    todo: Iterable[Block],
    tokenizer: Tokenizer,
    spec: DataSpec,
    path_of: Callable[[str], str],
    num_workers: int,
    most: int | None = None,
) -> Generator[int]:
    """Pack and write blocks that are not there yet; yield the bytes of text of each.

    Args:
        todo: the blocks.
        tokenizer: to encode with.
        spec: of the data set.
        path_of: the path of a block by its name.
        num_workers: processes of this machine; unused, for one signature.
        most: actors, of one core each; None: one for each core of the cluster.

    Raises:
        BadInput: no Ray, or no core; or as `blocks.make_rows`.
        StorageError: no cluster, or an actor was lost more often than Ray restarts it.
    """
    ray = _start()
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        count = min(most or cores, cores)
        if not count:
            raise BadInput("--runner ray: no machine of the cluster has a free core")
        log(f"Ray: {count} processes on {len(ray.nodes())} machines")
        ways = {"num_cpus": 1, "max_restarts": _MOST_RESTARTS, "max_task_retries": _MOST_RESTARTS}
        arguments = ray.put((tokenizer, spec))
        actor = ray.remote(_Packer)
        free = [actor.options(**ways).remote(arguments) for _ in range(count)]
        running: dict[Any, tuple[Any, Block]] = {}

        def finished() -> int:
            (done,), _ = ray.wait([*running])
            packer, block = running.pop(done)
            free.append(packer)
            blocks.write_block(path_of(block.name), ray.get(done))
            return blocks.text_bytes(block)

        for block in todo:
            if blocks.read_block(path_of(block.name), spec.row_dtype.itemsize, verify=True):
                yield blocks.text_bytes(block)
                continue
            if not free:
                yield finished()
            packer = free.pop()
            running[packer.pack.remote(block)] = packer, block
        while running:
            yield finished()
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CommandError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        line = shortened(str(error), 300)
        raise StorageError(f"the Ray cluster: {line}: run the same command again") from error
    finally:
        ray.shutdown()


class _Packer:
    """Packs blocks in a process of the cluster."""

    def __init__(self, arguments: tuple[Tokenizer, DataSpec]) -> None:
        blocks.start_packer(*arguments)

    def pack(self, block: Block) -> bytes:
        return blocks.packed(block)


def _start() -> Any:
    """Start Ray, or join its cluster; return its module.

    Raises:
        BadInput: no Ray.
        StorageError: no cluster.
    """
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        with waiting("starting Ray, or joining its cluster"):
            ray.init(logging_level=logging.ERROR)
    except Exception as error:  # Ray's own kinds, or none
        line = shortened(str(error), 300)
        raise StorageError(f"Ray does not start, or cannot be reached: {line}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    return ray
