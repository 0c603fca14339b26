"""`pretrain` as a part of a pod: from its flags to processes that hear each other."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from bigbird_ja import __version__
from bigbird_ja.data import order
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.process.errors import CommandError, Interrupted, classify
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.process.streams import write_results
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten
from bigbird_ja.train.engines.devices import TPU_FILES, is_there
from bigbird_ja.train.pods import place as place_lib
from bigbird_ja.train.pods import runtime
from bigbird_ja.train.pods.meeting import Meeting
from bigbird_ja.train.pods.place import Place
from bigbird_ja.train.pods.pod import Alone, Pod

# Packages that have a part in the program that all processes run together.
_PACKAGES = ("jax", "jaxlib", "libtpu", "tensorflow", "tensorflow-cpu", "numpy")
# Flags that all processes must share.
_FLAGS = ("mode", "engine", "use_tpu", "init_from", "overwrite", "profile_steps")


@contextlib.contextmanager
def joined(
    args: Any, config: Config, manifest: Manifest, stop: StopRequest, log: Callable[[str], None]
) -> Iterator[Alone]:
    """The pod that this process is a part of, once all are there; `Alone` where it is of none.

    Args:
        args: of `pretrain`.
        config, manifest: of the run, which all processes must share.
        stop: of this process; asked when any of the pod's is.
        log: for people.

    Raises:
        BadInput: the others do not come, or do not fit.
    """
    place = _place(args)
    if place.count == 1:
        yield Alone()
        return
    order.check_hosts(
        manifest.num_readers, config.training.global_batch_size, place.count, place.index
    )
    log(f"process {place.index} of {place.count}, which meet at {place.address}")
    card = card_of(args, config, manifest)
    meeting = Meeting(place, card, args.pod_wait_seconds, stop.is_set)
    meeting.meet()
    pod = Pod(
        place, meeting, log, stop.ask, leave,
        lambda pod, platform: runtime.connect(pod, platform, stop.install),
    )  # fmt: skip
    pod.leave = lambda error: _leave_all(pod, error)
    pod.start()
    where = f"in process {place.index} on {socket.gethostname()}"
    stop.tell = lambda name: pod.ask("stop", name if "in process" in name else f"{name} {where}")
    stop.leave = lambda message: _leave_all(pod, Interrupted(message))
    if stop.is_set():
        stop.tell(stop.name)
    try:
        yield pod
    except BaseException as error:
        known = classify(error)
        if known is None:
            pod.await_cause()
        pod.fail(known.reason if known else "bug", str(known or error))
        raise


def card_of(args: Any, config: Config, manifest: Manifest) -> dict[str, Any]:
    """What the processes of a pod must agree on."""
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    settings = {key: str(value) for key, value in flatten(config).items()}
    return {
        "version": __version__,
        "packages": packages,
        "data": manifest.fingerprint[:16],
        "settings": settings,
        "flags": {f"--{name}": str(getattr(args, name)) for name in _FLAGS},
        "MODEL_DIR": args.model_dir,
    }


def leave(error: CommandError) -> None:
    """Ends the process at once, from any thread."""
    with contextlib.suppress(OSError):
        os.write(2, f"bigbird-ja: {error}\n".encode())
    write_results({"reason": error.reason, "error": str(error)})
    os._exit(error.status)


def _leave_all(pod: Pod, error: CommandError) -> None:
    pod.fail(error.reason, str(error))
    leave(error)


def _place(args: Any) -> Place:
    is_on_tpu = args.use_tpu and args.engine != "estimator" and is_there(TPU_FILES)
    return place_lib.find(
        args.coordinator_address,
        args.num_processes,
        args.process_id,
        os.environ,
        place_lib.tpu_metadata if is_on_tpu else None,
    )
