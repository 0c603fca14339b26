"""`make-data --runner ray`: the parts of a data set as tasks of a Ray cluster (extra `ray`).

Ray gives each part to a machine with cores to spare, and again to another one where the first is
lost; what it had finished is not made twice. Machines see one --output_dir and the same text.
"""

from __future__ import annotations

import dataclasses
import logging
import os

from bigbird_ja.data import build
from bigbird_ja.process.console import log, waiting
from bigbird_ja.process.errors import BadInput, CommandError, StorageError

_RETRIES = 5  # of a part whose worker or machine was lost


def make_parts(request: build.Request, num_workers: int | None) -> None:
    """Makes all parts; `build.make_data` joins them.

    Args:
        request: `num_workers` and `overwrite` have no meaning here.
        num_workers: processes of a part; None: as many as the smallest machine has cores.

    Raises:
        BadInput: Ray is not installed, or no machine has so many cores; as of `build.make_part`.
        StorageError: there is no cluster; parts were lost more often than Ray tries again.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BadInput("--runner ray needs Ray: pip install 'bigbird-ja[ray]'") from error
    try:
        with waiting("starting Ray, or joining its cluster"):
            ray.init(logging_level=logging.ERROR)
    except Exception as error:  # Ray's own kinds, or none
        line = " ".join(str(error).split())[:300]
        raise StorageError(f"Ray does not start, or cannot be reached: {line}") from error
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = [int(resources.get("CPU", 0)) for resources in nodes]
        each = num_workers or max(1, min(filter(None, cores), default=1))
        count = sum(number // each for number in cores)
        if not count:
            raise BadInput(f"--num_workers {each}: no machine of the Ray cluster has so many cores")
        log(f"Ray: {count} parts of {each} processes on {len(cores)} machines")
        task = ray.remote(build.make_part).options(num_cpus=each, max_retries=_RETRIES)
        shared = ray.put(dataclasses.replace(request, num_workers=each, overwrite=False))
        ray.get([task.remote(shared, (number, count)) for number in range(count)])
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CommandError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        line = " ".join(str(error).split())[:300]
        raise StorageError(f"the Ray cluster: {line}: run the same command again") from error
    finally:
        ray.shutdown()
