"""Keep compiled programs next to the run, so that a restart compiles none."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from bigbird_ja import storage
from bigbird_ja.process.errors import StorageError


class CompiledPrograms:
    """Keep compiled programs for the next start on the same kind of machine.

    JAX keeps and finds them itself, by all that they depend on, in a local folder. For a run on a
    bucket that folder is downloaded before the first compilation and uploaded after it.

    Args:
        place: folder on disk or on gs://.
        scratch: local folder, used where `place` is on a bucket.
        platform: "cpu", "cuda" or "tpu".
        log: for what fails; a program that is not kept only costs time.
    """

    def __init__(self, place: str, scratch: str, platform: str, log: Callable[[str], None]) -> None:
        if platform == "cpu":  # its programs hold instructions that another CPU may not have
            place = storage.join(place, f"cpu-{_cpu_features()}")
        self._place, self._log = place, log
        self._local = os.path.join(scratch, "compiled") if storage.is_remote(place) else place
        self._platform = platform
        self._before: set[str] = set()

    def begin(self) -> None:
        """Download what was kept, and set JAX's folder."""
        if self._platform == "cpu" and jax.__version_info__ < (0, 7):
            return  # jaxlib 0.4.34 keeps CPU programs that write over donated memory, and crash
        with self._failures_logged():
            self._fetch()
        jax.config.update("jax_compilation_cache_dir", self._local)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # Further caches of XLA's would make the folder's path a part of the key.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")

    def keep(self) -> None:
        """Upload what was compiled since to the bucket."""
        if not storage.is_remote(self._place) or not os.path.isdir(self._local):
            return
        with self._failures_logged():
            new = sorted(set(os.listdir(self._local)) - self._before)
            for name in new:
                storage.upload(os.path.join(self._local, name), storage.join(self._place, name))
            self._before |= set(new)

    def _fetch(self) -> None:
        if not storage.is_remote(self._place):
            return
        os.makedirs(self._local, exist_ok=True)
        names = storage.list_files(self._place)
        for name in map(storage.check_inside, names):
            storage.download(storage.join(self._place, name), os.path.join(self._local, name))
        self._before = set(names)

    @contextlib.contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            self._log(f"compiled programs are not kept this time: {error}")


def _cpu_features() -> str:
    """Hash what this machine's CPU can do to eight hex digits."""
    text = ""
    with contextlib.suppress(OSError):
        match = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M)
        text = match[0] if match else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
