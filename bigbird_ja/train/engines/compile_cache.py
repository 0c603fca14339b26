"""Cache of compiled programs in MODEL_DIR."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage.ownership import FileVersion, Owned

# Name of the folder of compiled programs, in MODEL_DIR and in the local scratch folder.
FOLDER = "compiled"


class CompileCache:
    """Cache of a run's compiled programs, for later starts on the same kind of machine.

    JAX stores and finds the programs in a local folder, by a hash of everything that they depend
    on. Before the first compilation the programs in MODEL_DIR are copied to that folder. After the
    compilation new programs are copied back to MODEL_DIR. Programs are native code, so for safety a
    file that differs from the ownership manifest is ignored. `preflight` may add the programs of a
    TPU slice before the run begins.

    Args:
        owned: ownership manifest of MODEL_DIR, or None if there is none yet.
        scratch: local folder.
        platform: "cpu", "cuda" or "tpu".
        log: callback for messages. A failure of the cache is only logged, as it costs no more than
            another compilation.
    """

    def __init__(
        self, owned: Owned | None, scratch: str, platform: str, log: Callable[[str], None]
    ) -> None:
        self._folder = FOLDER
        if platform == "cpu":  # A program may contain instructions that another CPU lacks.
            self._folder = f"{FOLDER}/cpu-{_hash_cpu_features()}"
        self._owned, self._log = owned, log
        self._local = os.path.join(scratch, FOLDER)
        self._platform = platform
        self._before: set[str] = set()
        self._is_loaded = False

    def begin(self) -> None:
        """Copy the programs in MODEL_DIR to the local folder, and let JAX use that folder."""
        import jax

        if self._platform == "cpu" and jax.__version_info__ < (0, 7):
            # Cached CPU programs of jaxlib 0.4.34 crash, as they overwrite donated memory.
            return
        with self._log_failures():
            self._fetch()
        use(self._local)
        jax.monitoring.register_event_listener(self._on_event)

    def _on_event(self, event: str, **_: object) -> None:
        self._is_loaded |= event == "/jax/compilation_cache/cache_hits"

    def keep(self) -> list[str]:
        """Copy newly compiled programs to MODEL_DIR, and return their names there."""
        with self._log_failures():
            if not os.path.isdir(self._local):
                return []
            new = sorted(set(os.listdir(self._local)) - self._before)
            if self._before:
                found = "loaded a compiled program from MODEL_DIR"
                if not self._is_loaded:
                    found = "compiled the step, as no program in MODEL_DIR suits it here"
                self._log(found)
            if (owned := self._owned) is None:
                return []
            storage.make_directory(storage.join(owned.path, self._folder))
            paths = {f"{self._folder}/{name}": os.path.join(self._local, name) for name in new}
            owned.note({name: FileVersion.from_file(path) for name, path in paths.items()})
            for name, path in paths.items():
                storage.upload(path, storage.join(owned.path, name))
            self._before |= set(new)
            return [*paths]
        return []

    def _fetch(self) -> None:
        os.makedirs(self._local, exist_ok=True)
        if (owned := self._owned) is None:
            return
        for name in [n for n in owned.files if os.path.dirname(n) == self._folder]:
            path = os.path.join(self._local, os.path.basename(name))
            with contextlib.suppress(FileNotFoundError):
                storage.download(storage.join(owned.path, name), path)
                if owned.has_version(name, FileVersion.from_file(path)):
                    self._before.add(os.path.basename(name))
                else:
                    os.unlink(path)

    @contextlib.contextmanager
    def _log_failures(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError, BadInput) as error:
            self._log(f"the compiled programs in MODEL_DIR cannot be read or written: {error}")


def use(folder: str) -> None:
    """Set the local folder in which JAX stores and finds compiled programs."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    # Without the reset, JAX would keep the folder of an earlier run in this process.
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # With XLA's own caches, the key of a program would depend on the folder's path.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _hash_cpu_features() -> str:
    """Return a hash of this CPU's features, eight hex digits."""
    text = ""
    with contextlib.suppress(OSError):
        match = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M)
        text = match[0] if match else ""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
