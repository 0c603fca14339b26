"""`--profile_steps=100:105`: a TensorFlow profile of some steps, and where their time went.

The profile lies in MODEL_DIR/plugins/profile, where TensorBoard's profile plugin looks.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bigbird_ja import storage

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


class ProfileHook(tf.estimator.SessionRunHook):
    """Profiles the steps `first` to `last`.

    Args:
        first, last: global steps; a device loop may cover more.
        read_step: the global step, from a session.
        model_dir: the profile is put under its `plugins/profile`.
        scratch: where it is written first.
        log: told the summary.
    """

    def __init__(
        self,
        first: int,
        last: int,
        *,
        read_step: Callable[[Any], int],
        model_dir: str,
        scratch: str,
        log: Callable[[str], None],
    ) -> None:
        self._first, self._last = first, last
        self._read_step = read_step
        self._model_dir, self._scratch, self._log = model_dir, scratch, log
        self._began: tuple[int, float] | None = None
        self._step = 0
        self._done = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Notes where training starts."""
        self._step = self._read_step(session)

    def before_run(self, run_context: Any) -> None:
        """Starts before the first step wanted."""
        if self._began is None and not self._done and self._step + 1 >= self._first:
            tf.profiler.experimental.start(self._scratch)
            self._began = (self._step, time.monotonic())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops after the last one."""
        self._step = self._read_step(run_context.session)
        if self._began is not None and self._step >= self._last:
            self._finish()

    def end(self, session: Any) -> None:
        """Training ended before the last step wanted."""
        if self._began is not None:
            self._finish()

    def _finish(self) -> None:
        assert self._began is not None
        step, start = self._began
        wall = time.monotonic() - start
        self._began, self._done = None, True
        tf.profiler.experimental.stop()
        found = glob.glob(os.path.join(self._scratch, "plugins", "profile", "**"), recursive=True)
        files = [path for path in found if os.path.isfile(path)]
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
