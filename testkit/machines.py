"""Simulate a machine with given packages and devices."""

import importlib.metadata
import importlib.util

from bigbird_ja.train.engines import devices

_ENGINES = {"tensorflow_estimator", "jax", "libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin"}


class PretendedMachine:
    """Machine that seems to have only the given engine packages and device files.

    `packages` maps the names of packages to versions. Modules that belong to no engine are found
    as on the real machine.
    """

    def __init__(self, monkeypatch, packages, files):
        self.packages, self.files, self._patch = dict(packages), files, monkeypatch
        real = importlib.util.find_spec

        def find_spec(name, *rest):
            if name in _ENGINES:
                return object() if name in self.packages else None
            return real(name, *rest)

        def version(name):
            if name not in self.packages:
                raise importlib.metadata.PackageNotFoundError(name)
            return self.packages[name]

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(devices, "is_there", lambda files: files == self.files)

    def tpu(self, kind):
        """Add a TPU, such as "v3-8", to the machine."""
        self.files = devices.TPU_FILES
        self._patch.setenv("TPU_ACCELERATOR_TYPE", kind)
