"""Cache of compiled programs in MODEL_DIR."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput, StorageError
from bigbird_ja.storage.ownership import Made, Owned

_FOLDER = "compiled"  # in MODEL_DIR


class CompiledPrograms:
    """Keep compiled programs for the next start on the same kind of machine.

    JAX keeps and finds them itself, by all that they depend on, in a local folder. What MODEL_DIR
    has is copied there before the first compilation, and what is new is copied back after it. It is
    native code: what is not as MODEL_DIR's mark states it is left alone.

    Args:
        model_dir: on disk or on gs://, with its mark.
        scratch: local folder.
        platform: "cpu", "cuda" or "tpu".
        log: for what fails; a program that is not kept only costs time.
    """

    def __init__(
        self, model_dir: str, scratch: str, platform: str, log: Callable[[str], None]
    ) -> None:
        self._folder = _FOLDER
        if platform == "cpu":  # its programs hold instructions that another CPU may not have
            self._folder = f"{_FOLDER}/cpu-{_cpu_features()}"
        self._model_dir, self._log = model_dir, log
        self._local = os.path.join(scratch, _FOLDER)
        self._platform = platform
        self._before: set[str] = set()

    def begin(self) -> None:
        """Copy what was kept, and set JAX's folder."""
        import jax

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
        """Copy what was compiled since to MODEL_DIR."""
        with self._failures_logged():
            owned = Owned.load(self._model_dir)
            if owned is None or not os.path.isdir(self._local):
                return
            storage.make_directory(storage.join(self._model_dir, self._folder))
            new = sorted(set(os.listdir(self._local)) - self._before)
            paths = {f"{self._folder}/{name}": os.path.join(self._local, name) for name in new}
            owned.note({name: Made.of_file(path) for name, path in paths.items()})
            for name, path in paths.items():
                storage.upload(path, storage.join(self._model_dir, name))
            self._before |= set(new)

    def _fetch(self) -> None:
        os.makedirs(self._local, exist_ok=True)
        owned = Owned.load(self._model_dir)
        for name in storage.list_files(storage.join(self._model_dir, self._folder)):
            path = os.path.join(self._local, storage.check_inside(name))
            storage.download(storage.join(self._model_dir, f"{self._folder}/{name}"), path)
            if owned is None or not owned.states(f"{self._folder}/{name}", Made.of_file(path)):
                os.unlink(path)
            else:
                self._before.add(name)

    @contextlib.contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError, BadInput) as error:
            self._log(f"compiled programs are not kept this time: {error}")


def _cpu_features() -> str:
    """Hash what this machine's CPU can do to eight hex digits."""
    text = ""
    with contextlib.suppress(OSError):
        match = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M)
        text = match[0] if match else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
