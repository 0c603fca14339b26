"""Packing of blocks on a Ray cluster, for `make-data --runner ray` (extra `ray`).

This machine reads the corpus, sends its blocks to actors and writes the results. So the machines
need no shared disk, and the data set is the same as if one machine had packed all blocks.
"""

import logging
import os
import signal
from collections.abc import Callable, Generator, Iterable
from typing import Any

from bigbird_ja import storage
from bigbird_ja.data import blocks
from bigbird_ja.data.blocks import Block
from bigbird_ja.data.manifest import DataSpec
from bigbird_ja.errors import StorageError
from bigbird_ja.process.console import log, shorten, show_waiting
from bigbird_ja.text.tokenizer import Tokenizer

# Ray restarts an actor if its process or machine is lost, and sends the block again.
_LOST = {"max_restarts": 5, "max_task_retries": 5}


def pack_blocks(
    todo: Iterable[Block],
    tokenizer: Tokenizer,
    spec: DataSpec,
    path_of: Callable[[str], str],
    num_workers: int | None,
) -> Generator[int]:
    """Pack and write the blocks that do not exist yet, and yield the text size of each in bytes.

    Args:
        todo: blocks to pack.
        tokenizer: tokenizer of the data set.
        spec: spec of the data set.
        path_of: function that returns the path of a block's file by its name.
        num_workers: number of actors with one core each, or None for one actor per core of the
            cluster.

    Raises:
        BadInput: As in `blocks.make_rows`.
        StorageError: There is no cluster, or an actor was lost more often than Ray restarts it.
    """
    ray = _start()
    from ray.util.multiprocessing import Pool

    def find_missing() -> Iterable[Block]:
        size = spec.row_dtype.itemsize
        return (b for b in todo if not blocks.read_block(path_of(b.name), size, verify=True))

    try:
        cores = int(ray.cluster_resources()["CPU"])
        count = min(num_workers or cores, cores)
        log(f"Ray: {count} processes on {len(ray.nodes())} machines")
        pool = Pool(count, blocks.start_packer, (tokenizer, spec), ray_remote_args=_LOST)
        for name, data, size in pool.imap_unordered(_pack, find_missing()):
            storage.write_bytes(path_of(name), data)
            yield size
    except ray.exceptions.RayError as error:
        line = shorten(str(error), 300)
        raise StorageError(f"the Ray cluster failed ({line}): rerun the same command") from error
    finally:
        ray.shutdown()


def _pack(block: Block) -> tuple[str, bytes, int]:
    return block.name, blocks.pack_to_bytes(block), blocks.count_text_bytes(block)


def _start() -> Any:
    """Start Ray or join its cluster, and return its module.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        StorageError: Ray does not start.
    """
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        with show_waiting("starting Ray, or joining its cluster"):
            ray.init(logging_level=logging.ERROR)
    except Exception as error:  # Ray raises exceptions of many classes
        line = shorten(str(error), 300)
        raise StorageError(
            f"Ray cannot be started or joined ({line}): check the cluster"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # `ray.init` installs another handler.
    return ray
