"""The processes of a pod, one per host, that train one run together.

They stand on JAX's coordination service (`jax.distributed`), which process 0 serves: it brings them
together, ends all where one dies (heartbeats), and its key-value store carries what they agree on.
Process 0 is the writer: it holds the lease on MODEL_DIR and writes its files.

**One step for all.** A program of JAX's runs on all devices together, so a save or the last step
must come at the same step everywhere. The writer names that step in the store, far enough ahead:
every step sums over all devices, so no process has finished a step that the writer has not
dispatched, and none dispatches more than `ahead` steps before it reads the store again. (JAX's
`reached_preemption_sync_point` works once, for SIGTERM alone, and takes the signal's handler from
us; saves by time, Ctrl-C and --max_train_minutes need the same.)

**One end for all.** A process that fails leaves its reason in the store, and the others end with
it. Where one is killed, JAX's client aborts the others: `_on_abort` makes status 76 of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bigbird_ja.process import errors
from bigbird_ja.process.errors import BadInput, CommandError, Stalled, telling_line

NEVER = 1 << 62  # a step that is not reached
HEARTBEAT_SECONDS = 40  # a process that sends none for so long is dead
_OLDEST_JAX = (0, 7)  # the first whose `initialize` takes these seconds
_POLL_SECONDS = 0.2
_FAREWELL_SECONDS = 10.0  # for the others to read why process 0 fails, before its store is gone
_DAY_MS = 24 * 3600 * 1000  # of a wait that a failure ends
_NO_PROXY = "no_grpc_proxy"  # in lower case alone
_GONE = (
    "another process of this pod is gone: it was killed, or its machine or network is: stopped; the"
    " last checkpoint is good: run the same command again on every host"
)

Arrays = Mapping[str, np.ndarray]
Leave = Callable[[CommandError], None]


class Alone:
    """A process that trains by itself."""

    index, count = 0, 1
    is_writer = True
    leave: Leave  # ends this process at once, from any thread; called where another one failed

    def barrier(self, name: str) -> None:
        """Waits until all processes are here."""

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """What the writer makes (as JSON), in every process."""
        return make()

    def turn(self, step: int, limit: int, ahead: int) -> int:
        """Before a turn of the engine, which may dispatch `ahead` steps beyond the finished `step`:
        how far it may go, `limit` at most."""
        return limit

    def stops_at(self, step: int, asked: bool) -> bool:
        """Whether training stops at `step`, where this process was asked to stop or was not."""
        return asked

    def ask(self, what: str, name: str = "") -> None:
        """Requests a step at which all "stop" or "save"; `name` is who requests it."""

    def agreed(self, what: str) -> int | None:
        """The last step that was agreed on for that."""
        return None

    def collect(self, key: str, own: Arrays, poll: Callable[[], None]) -> list[Arrays] | None:
        """The arrays of all processes, in the writer; None in the others."""
        return [own]

    def fail(self, reason: str, message: str) -> None:
        """Tells the others that this process ends badly."""

    def explain(self, error: BaseException) -> CommandError | None:
        """The end of another process that an error of this one comes from, if it does."""
        return None

    def finish(self) -> None:
        """The run has ended well, in all processes."""


class Pod(Alone):
    """A process of several; see the module.

    Args:
        index, count: which process this is, and of how many.
        host: its machine, for people.
        stop: requests a stop of this process, given who requested it.
        leave: as `Alone.leave`.
    """

    def __init__(
        self, index: int, count: int, host: str, stop: Callable[[str], None], leave: Leave
    ) -> None:
        self.index, self.count, self.is_writer = index, count, index == 0
        self.name = f"process {index} on {host}"
        self._stop, self.leave = stop, leave
        self._client: Any = None
        self._lock = threading.Lock()
        self._is_over = False  # this process has failed or finished
        self._is_cut_off = False  # the store is gone
        self._news: CommandError | None = None  # how another process failed
        self._waits = False  # the main thread does, and will raise the news
        self._wanted: set[str] = set()  # what the writer is to name a step for
        self._agreed: dict[str, int] = {}
        self._reach = -1  # the last step that this process may have dispatched

    def connect(
        self, address: str, platform: str, seconds: float, check: Callable[[], None]
    ) -> None:
        """Joins the processes, so that `jax.devices()` are those of all; before other uses of JAX.

        Args:
            address: HOST:PORT at which process 0 serves.
            platform: "cpu", "cuda" or "tpu".
            seconds: to wait for the others.
            check: called meanwhile; raises what ends the wait.

        Raises:
            BadInput: jax is too old, or the processes do not meet.
        """
        import jax

        if jax.__version_info__ < _OLDEST_JAX:
            raise BadInput(
                f"several processes need jax 0.7 or newer, and this is {jax.__version__}: update"
                " jax on every host"
            )
        host, _, port = address.rpartition(":")
        is_local = host in ("localhost", "[::1]") or host.startswith("127.")
        # gRPC would ask a proxy for the way to the next machine; JAX warns of the variable.
        os.environ[_NO_PROXY] = ",".join(
            filter(None, [os.environ.get(_NO_PROXY), host.strip("[]")])
        )
        logging.getLogger("jax._src.distributed").setLevel(logging.ERROR)
        if platform == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        never_met = BadInput(
            f"--coordinator_address={address}: the {self.count} processes did not meet there within"
            f" {seconds:.0f} s (--pod_wait_seconds): start the same command on every host, each"
            " with a --process_id of its own, and check the address"
        )
        end = time.monotonic() + seconds

        def check_time() -> None:
            check()
            if time.monotonic() > end:
                raise never_met

        _on_abort(lambda: self.leave(never_met), in_main=True)
        try:
            self._waiting(
                lambda: jax.distributed.initialize(
                    address,
                    self.count,
                    self.index,
                    cluster_detection_method="deactivate",
                    initialization_timeout=int(seconds) + 3600,  # JAX would abort
                    heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                    coordinator_bind_address=f"{host if is_local else '[::]'}:{port}",
                ),
                check_time,
            )
        except RuntimeError as error:
            raise BadInput(
                f"--coordinator_address={address}: process {self.index} cannot start there"
                f" ({telling_line(error)}): another process 0 may be at work, or give a free port"
                " of the host of process 0"
            ) from error
        from jax._src.distributed import global_state  # no public name has the key-value store

        self._client = global_state.client
        _on_abort(self._cut_off)
        threading.Thread(target=self._listen, name="pod", daemon=True).start()

    # Waiting for each other.

    def barrier(self, name: str) -> None:
        self._waiting(lambda: self._client.wait_at_barrier(name, _DAY_MS))

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        if self.is_writer:
            value = make()
            self._client.key_value_set(f"share/{name}", json.dumps(value))
            return value
        return self._get(f"share/{name}")

    def gather(self, name: str, value: Any) -> list[Any]:
        """The values (as JSON) of all processes, in all of them."""
        self._client.key_value_set(f"{name}/{self.index}", json.dumps(value))
        return [self._get(f"{name}/{index}") for index in range(self.count)]

    def collect(self, key: str, own: Arrays, poll: Callable[[], None]) -> list[Arrays] | None:
        if not self.is_writer:
            buffer = io.BytesIO()
            arrays: dict[str, Any] = {**own}
            np.savez(buffer, **arrays)
            self._client.key_value_set_bytes(f"{key}/{self.index}", buffer.getvalue())
            return None
        parts = [own]
        while len(parts) < self.count:
            poll()
            name = f"{key}/{len(parts)}"
            try:
                data = self._client.key_value_try_get_bytes(name)
            except RuntimeError as error:
                if "NOT_FOUND" not in str(error):
                    raise
                time.sleep(_POLL_SECONDS)
                continue
            self._client.key_value_delete(name)
            with np.load(io.BytesIO(data)) as arrays:
                parts.append(dict(arrays))
        return parts

    def _get(self, key: str) -> Any:
        return json.loads(self._waiting(lambda: self._client.blocking_key_value_get(key, _DAY_MS)))

    def _waiting(self, call: Callable[[], Any], check: Callable[[], None] = lambda: None) -> Any:
        """The result of a call that waits for others, made in a thread: in the main thread `check`
        and the news end the wait."""
        result: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                result.append(call())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, name="pod-wait", daemon=True)
        self._waits = True
        thread.start()
        try:
            while thread.is_alive() and self._news is None:
                check()
                thread.join(_POLL_SECONDS)
        finally:
            with self._lock:
                self._waits = False
        if self._news is not None:
            raise self._news
        if failure:
            raise failure[0]
        return result[0]

    # Steps.

    def turn(self, step: int, limit: int, ahead: int) -> int:
        entries = {} if self.is_writer else dict(self._client.key_value_dir_get("step/"))
        for what in ("stop", "save"):
            key = f"step/{what}"
            if self._agreed.get(what, -1) > step:
                continue  # the next one is for after that
            if what in self._wanted:
                self._wanted.discard(what)
                self._agreed[what] = max(self._reach, step) + ahead + 1
                self._client.key_value_set(key, str(self._agreed[what]), allow_overwrite=True)
            elif key in entries:
                self._agreed[what] = int(entries[key])
        limit = min([limit, *(at for at in self._agreed.values() if at > step)])
        self._reach = max(self._reach, min(limit, step + ahead))
        return limit

    def stops_at(self, step: int, asked: bool) -> bool:
        return step >= self._agreed.get("stop", NEVER)

    def ask(self, what: str, name: str = "") -> None:
        if what == "stop":
            with contextlib.suppress(RuntimeError):  # somebody was first, or the store is gone
                self._client.key_value_set("pod/stop", name)
        if self.is_writer and "stop" not in self._agreed:
            self._wanted.add(what)

    def agreed(self, what: str) -> int | None:
        return self._agreed.get(what)

    # Ends.

    def fail(self, reason: str, message: str) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        if self._client is None or self._is_cut_off:
            return
        end = {"name": self.name, "reason": reason, "message": message}
        with contextlib.suppress(RuntimeError):
            self._client.key_value_set(f"pod/ended/{self.index}", json.dumps(end))
            self._await_all("pod/ended/", _FAREWELL_SECONDS)

    def explain(self, error: BaseException) -> CommandError | None:
        if "Gloo" in str(error):  # on CPUs the sum fails at once where one is gone
            return self._news or Stalled(_GONE)
        if type(error).__name__ not in ("JaxRuntimeError", "XlaRuntimeError"):
            return None
        end = time.monotonic() + HEARTBEAT_SECONDS + _FAREWELL_SECONDS
        self._waits = True
        while time.monotonic() < end and self._news is None and not self._is_over:
            time.sleep(_POLL_SECONDS)
        return self._news

    def finish(self) -> None:
        if not self.is_writer:
            self._get("share/over")
        with self._lock:
            self._is_over = True
        with contextlib.suppress(RuntimeError):  # the others may be gone by now
            if self.is_writer:
                self._client.key_value_set("share/over", "true")
                self._await_all("over/", 2 * HEARTBEAT_SECONDS)
            else:
                self._client.key_value_set(f"over/{self.index}", "")

    def detach(self) -> None:
        """Keeps JAX from waiting for the other processes when this one exits."""
        if "jax" not in sys.modules:
            return  # refused before it was needed
        from jax._src.distributed import global_state

        kept = (global_state.client, global_state.service)
        global_state.client = global_state.service = None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # their destructors wait, too

    def _await_all(self, folder: str, seconds: float) -> None:
        """In the writer: until all others have a key there, or these seconds are over."""
        end = time.monotonic() + seconds
        others = {f"{folder}{index}" for index in range(1, self.count)}
        while self.is_writer and time.monotonic() < end:
            if others <= {key for key, _ in self._client.key_value_dir_get(folder)}:
                return
            time.sleep(_POLL_SECONDS / 4)

    def _listen(self) -> None:
        """In a thread: requests to stop, and how other processes failed."""
        is_asked = False
        while not self._is_over and not self._is_cut_off:
            try:
                entries = dict(self._client.key_value_dir_get("pod/"))
            except RuntimeError:  # the store is gone, and JAX's client will abort
                return
            if "pod/stop" in entries and not is_asked:
                is_asked = True
                self._stop(entries["pod/stop"])
            for key, value in entries.items():
                if key.startswith("pod/ended/") and key != f"pod/ended/{self.index}":
                    self._end(_end_of(**json.loads(value)))
                    return
            time.sleep(_POLL_SECONDS)

    def _cut_off(self) -> None:
        self._is_cut_off = True
        self._end(Stalled(_GONE))

    def _end(self, news: CommandError) -> None:
        """Ends this process as another one has: in the main thread if that waits, or here."""
        with self._lock:
            if self._news is not None or self._is_over:
                return
            self._news = news
            if self._waits:
                return
        self.leave(news)


def _end_of(name: str, reason: str, message: str) -> CommandError:
    """How this process ends where another one has failed."""
    if reason == "bug" or reason not in errors.STATUS_OF_REASON:
        return Stalled(f"{name} ended ({reason}: {message}): see its output")
    return errors.of_reason(reason, message if name in message else f"{name}: {message}")


_handlers: list[Any] = []  # C calls the last: none is ever freed


def _on_abort(act: Callable[[], None], in_main: bool = False) -> None:
    """Calls `act` in a thread where native code aborts the process; the thread that does waits for
    ever. Python's own handlers would come too late: abort() does not return.

    Args:
        act: ends the process.
        in_main: also where the main thread aborts, which is no other process's doing otherwise.
    """

    def handle(number: int) -> None:
        if in_main or threading.current_thread() is not threading.main_thread():
            threading.Thread(target=act, daemon=True).start()
            time.sleep(_DAY_MS)

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(handle))
    ctypes.CDLL(None).signal(signal.SIGABRT, _handlers[-1])
