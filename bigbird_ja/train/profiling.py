"""`--profile_steps=100:105`: a profile of some steps, and where their time went.

The profile lies in MODEL_DIR/plugins/profile, where TensorBoard's profile plugin looks.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bigbird_ja import storage
from bigbird_ja.train.engines import Engine
from bigbird_ja.train.saving import NEVER

_TOP = 7  # ops in the summary: with the header and the verdict ten lines
# Ops that wait for data, on the host and on a TPU.
_INPUT_OPS = ("IteratorGetNext", "InfeedDequeue", "infeed")
# Lines of an XPlane that repeat, in other words, what the op lines hold.
_OTHER_LINES = ("Steps", "XLA Modules", "Framework Name Scope", "Source code", "Async XLA Ops")
_INPUT_BOUND_SHARE = 0.1


@dataclass(frozen=True)
class Timing:
    """Where the time of some steps went.

    `by_op` is kind of op -> seconds, summed over threads or cores; `waiting` is the share of wall
    time in which the step waited for its input.
    """

    steps: int
    wall_seconds: float
    waiting: float
    by_op: dict[str, float]


def summary(timing: Timing) -> str:
    """Ten lines for people: the costliest kinds of ops, and whether input or step is the limit."""
    total = sum(timing.by_op.values()) or 1.0
    milliseconds = timing.wall_seconds / max(timing.steps, 1) * 1e3
    lines = [f"profile of {timing.steps} steps: {milliseconds:.1f} ms per step; time in ops:"]
    costliest = sorted(timing.by_op.items(), key=lambda pair: -pair[1])
    for name, seconds in costliest[:_TOP]:
        lines.append(f"  {seconds / total:6.1%}  {name}")
    rest = sum(seconds for _, seconds in costliest[_TOP:])
    lines.append(f"  {rest / total:6.1%}  everything else")
    limit = "input" if timing.waiting > _INPUT_BOUND_SHARE else "step"
    lines.append(
        f"{timing.waiting:.1%} of the time was spent waiting for input: the {limit} is the limit"
    )
    return "\n".join(lines)


def read_timing(paths: Iterable[str], steps: int, wall_seconds: float) -> Timing:
    """Sums up the `.xplane.pb` files of one profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    by_op: dict[str, float] = {}
    for path in paths:
        space = xplane_pb2.XSpace()
        with open(path, "rb") as file:
            space.ParseFromString(file.read())
        devices = [p for p in space.planes if p.name.startswith("/device:") and p.lines]
        for plane in devices or [p for p in space.planes if p.name == "/host:CPU"]:
            _add_plane(plane, by_op, is_device=bool(devices))
    waited = sum(seconds for name, seconds in by_op.items() if name.startswith(_INPUT_OPS))
    return Timing(steps, wall_seconds, min(waited / max(wall_seconds, 1e-9), 1.0), by_op)


def _add_plane(plane: Any, by_op: dict[str, float], is_device: bool) -> None:
    for line in plane.lines:
        if line.name in _OTHER_LINES:
            continue
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            kind = _kind(name, is_device)
            if kind:
                by_op[kind] = by_op.get(kind, 0.0) + event.duration_ps / 1e12


def _kind(name: str, is_device: bool) -> str:
    """`layer_0/mlp/MatMul:MatMul` on a host is MatMul; `fusion.12` on a device is fusion."""
    if is_device:
        return name.lstrip("%").partition(" ")[0].partition(".")[0]
    place, colon, kind = name.partition(":")
    if not colon or " " in name or "::" in name or not place:
        return ""  # an event of the runtime, which contains ops
    return kind.partition("#")[0]


class Profiler:
    """Profiles the steps `first` to `last`.

    Args:
        first, last: global steps; a device loop may cover more.
        engine: runs the steps.
        model_dir: the profile is put under its `plugins/profile`.
        scratch: where it is written first.
        log: gets the summary.
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
        self._began: tuple[int, float] | None = None
        self._step = 0
        self._done = False

    def next_edge(self, step: int) -> int:
        """The next step after `step` at which the profile begins or ends."""
        edges = [edge for edge in (self._first - 1, self._last) if edge > step]
        return min(edges, default=NEVER)

    def before(self, step: int) -> None:
        """Starts where the step after `step` is the first one wanted."""
        if self._began is None and not self._done and step + 1 >= self._first:
            self._engine.start_profile(self._scratch)
            self._began = (step, time.monotonic())

    def after(self, step: int) -> None:
        """Stops where `step`, which is finished, is the last one."""
        self._step = step
        if self._began is not None and step >= self._last:
            self._finish()

    def close(self) -> None:
        """Training ended before the last step wanted."""
        if self._began is not None:
            self._finish()

    def _finish(self) -> None:
        assert self._began is not None
        step, start = self._began
        wall = time.monotonic() - start
        self._began, self._done = None, True
        self._engine.stop_profile()
        paths = glob.glob(os.path.join(self._scratch, "plugins", "profile", "**"), recursive=True)
        files = [path for path in paths if os.path.isfile(path)]
        timing = read_timing(
            [path for path in files if path.endswith(".xplane.pb")], self._step - step, wall
        )
        for path in files:
            self._publish(path)
        place = storage.join(self._model_dir, "plugins/profile")
        self._log(f"{summary(timing)}\nTensorBoard's profile plugin shows it from {place}")

    def _publish(self, path: str) -> None:
        name = os.path.relpath(path, self._scratch)
        target = storage.join(self._model_dir, name)
        storage.make_directory(storage.directory_of(target))
        storage.upload(path, target)
