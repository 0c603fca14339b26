"""`--profile_steps=100:105`: a profile of some steps, for TensorBoard's profile plugin.

It lies in MODEL_DIR/plugins/profile, where the plugin looks.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable

from bigbird_ja import storage
from bigbird_ja.train.engines import Engine
from bigbird_ja.train.saving import NEVER


class Profiler:
    """Profiles the steps `first` to `last`.

    Args:
        first, last: global steps; a device loop may cover more.
        engine: runs the steps.
        model_dir: the profile is put under its `plugins/profile`.
        scratch: where it is written first.
        log: says where it is.
    """

    def __init__(
        self,
        first: int,
        last: int,
        engine: Engine,
        model_dir: str,
        scratch: str,
        log: Callable[[str], None],
    ) -> None:
        self._first, self._last, self._engine = first, last, engine
        self._model_dir, self._scratch, self._log = model_dir, scratch, log
        self._state = "waiting"  # running | done

    def next_edge(self, step: int) -> int:
        """The next step after `step` at which the profile begins or ends."""
        edges = [edge for edge in (self._first - 1, self._last) if edge > step]
        return min(edges, default=NEVER)

    def before(self, step: int) -> None:
        """Starts where the step after `step` is the first one wanted."""
        if self._state == "waiting" and step + 1 >= self._first:
            self._engine.start_profile(self._scratch)
            self._state = "running"

    def after(self, step: int) -> None:
        """Stops where `step`, which is finished, is the last one wanted."""
        if step >= self._last:
            self.close()

    def close(self) -> None:
        """Ends a profile that runs, and brings it to MODEL_DIR."""
        if self._state != "running":
            return
        self._state = "done"
        self._engine.stop_profile()
        folder = os.path.join(self._scratch, "plugins", "profile", "**")
        for path in filter(os.path.isfile, glob.glob(folder, recursive=True)):
            target = storage.join(self._model_dir, os.path.relpath(path, self._scratch))
            storage.make_directory(storage.directory_of(target))
            storage.upload(path, target)
        place = storage.join(self._model_dir, "plugins/profile")
        self._log(f"TensorBoard's profile plugin shows the profile from {place}")
