"""Join the processes of a pod, one per host, that train one run together.

They stand on JAX's coordination service (`jax.distributed`), which process 0 serves: it brings them
together, ends all where one dies (heartbeats), and its key-value store carries what they agree on.
Process 0 is the writer: it holds the lease on MODEL_DIR and writes its files.

**One step for all.** A program of JAX's runs on all devices together, so a save by time or the last
step must come at the same step everywhere. The writer names that step in the store, far enough
ahead: every step sums over all devices, so no process has finished a step that the writer has not
dispatched, and none dispatches more than `ahead` steps before it reads the store again. (JAX's
`reached_preemption_sync_point` works once, for SIGTERM alone, and takes the signal's handler from
us; saves by time, Ctrl-C and --max_train_minutes need the same.)

**One end for all.** A process that fails leaves its reason in the store, and the others end with
it. Where one is killed, JAX's client aborts the others: `signals.on_abort` makes status 76 of that.
"""

import concurrent.futures
import contextlib
import ctypes
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bigbird_ja.process import errors
from bigbird_ja.process.classify import summary_line
from bigbird_ja.process.errors import BadInput, CommandError, Stalled
from bigbird_ja.process.signals import on_abort
from bigbird_ja.train.processes import NamedArrays, SingleProcess
from bigbird_ja.train.threads import in_thread

_NO_PROXY = "no_grpc_proxy"  # in lower case alone
HEARTBEAT_SECONDS = 40  # a process that sends none for so long is dead
_POLL_SECONDS = 0.2
_FAREWELL_SECONDS = 10.0  # for the others to read why process 0 fails, before its store is gone
_DAY_MS = 24 * 3600 * 1000  # of a wait that a failure ends
_GONE = (
    "another process of this pod is gone: it was killed, or its machine or network is: stopped; the"
    " last checkpoint is good: run the same command again on every host"
)


class Pod(SingleProcess):
    """A process of several; see the module.

    Args:
        index, count: which process this is, and of how many.
        host: its machine, for people.
        stop: requests a stop of this process, given who requested it.
    """

    def __init__(self, index: int, count: int, host: str, stop: Callable[[str], None]) -> None:
        self.index, self.count, self.is_writer = index, count, index == 0
        self.name = f"process {index} on {host}"
        self._stop = stop
        self._client: Any = None  # of the store; None before it is there and after it is gone
        self._is_over = False  # this process has failed or finished
        self._failure: CommandError | None = None  # its own, once it has failed
        self._news: CommandError | None = None  # another process's failure
        self._waits = False  # a thread does, and will raise the news in the main thread
        self._wanted: set[str] = set()  # "stop", "save": what the writer is to name a step for
        self._agreed = (-1, False)  # the last step that was named, and whether all stop there
        self._reach = -1  # the last step that this process may have dispatched

    def connect(
        self, address: str, platform: str, seconds: float, check: Callable[[], None]
    ) -> None:
        """Join the processes, so that `jax.devices()` are those of all; before other uses of JAX.

        Args:
            address: HOST:PORT at which process 0 serves.
            platform: "cpu", "cuda" or "tpu".
            seconds: to wait for the others.
            check: called meanwhile; raises what ends the wait.

        Raises:
            BadInput: jax is too old, or the processes do not meet.
        """
        import jax
        from jax._src.distributed import global_state  # no public name has the key-value store

        if jax.__version_info__ < (0, 7):  # its `initialize` takes no such seconds
            raise BadInput(
                f"several processes need jax 0.7 or newer, and this is {jax.__version__}: update"
                " jax on every host"
            )
        never_met = BadInput(
            f"JAX_COORDINATOR_ADDRESS={address}: the {self.count} processes did not meet there"
            f" within {seconds:.0f} s (--pod_wait_seconds): start the same command on every host,"
            " each with a JAX_PROCESS_ID of its own, and check the address"
        )
        end = time.monotonic() + seconds

        def check_time() -> None:
            check()
            if time.monotonic() > end:
                raise never_met

        on_abort(lambda: self.leave(never_met))
        try:
            self._waiting(lambda: self._initialize(address, platform, seconds), check_time)
        except RuntimeError as error:
            raise BadInput(
                f"JAX_COORDINATOR_ADDRESS={address}: process {self.index} cannot start there"
                f" ({summary_line(error)}): another process 0 may be at work, or give a free port"
                " of the host of process 0"
            ) from error
        self._client = global_state.client
        on_abort(self._cut_off)
        in_thread("pod", self._listen)

    def _initialize(self, address: str, platform: str, seconds: float) -> None:
        import jax

        host, _, port = address.rpartition(":")
        is_local = host in ("localhost", "[::1]") or host.startswith("127.")
        # gRPC would ask a proxy for the way to the next machine; JAX warns of the variable.
        others = [os.environ.get(_NO_PROXY), host.strip("[]")]
        os.environ[_NO_PROXY] = ",".join(filter(None, others))
        logging.getLogger("jax._src.distributed").setLevel(logging.ERROR)
        if platform == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            address,
            self.count,
            self.index,
            cluster_detection_method="deactivate",
            initialization_timeout=int(seconds) + 3600,  # at its own JAX would abort
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=f"{host if is_local else '[::]'}:{port}",
        )

    # Waiting for each other.

    def barrier(self, name: str) -> None:
        """See `SingleProcess.barrier`."""
        self._waiting(lambda: self._client.wait_at_barrier(name, _DAY_MS))

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """See `SingleProcess.share`; the others get it from the store."""
        if not self.is_writer:
            return json.loads(self._get(f"share/{name}"))
        value = make()
        self._client.key_value_set_bytes(f"share/{name}", json.dumps(value).encode())
        return value

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """See `SingleProcess.collect`."""
        if not self.is_writer:
            buffer = io.BytesIO()
            np.savez(buffer, **dict[str, Any](arrays))
            self._client.key_value_set_bytes(f"{key}/{self.index}", buffer.getvalue())
            return None
        parts = [arrays]
        for index in range(1, self.count):
            with np.load(io.BytesIO(self._get(f"{key}/{index}", poll))) as loaded:
                parts.append(dict(loaded))
            self._client.key_value_delete(f"{key}/{index}")
        return parts

    def _get(self, key: str, check: Callable[[], None] = lambda: None) -> bytes:
        get = self._client.blocking_key_value_get_bytes
        return bytes(self._waiting(lambda: get(key, _DAY_MS), check))

    def _waiting(self, call: Callable[[], Any], check: Callable[[], None] = lambda: None) -> Any:
        """Return the result of a call that waits for others.

        It is made in a thread of its own: here `check` and the news end the wait.
        """
        self._waits = True
        future = in_thread("pod-wait", call)
        try:
            while not future.done() and self._news is None:
                check()
                concurrent.futures.wait([future], _POLL_SECONDS)
        finally:
            self._waits = False
        if self._news is not None:
            raise self._news
        return future.result()

    # Steps.

    def next_limit(self, step: int, limit: int, ahead: int) -> int:
        """See `SingleProcess.next_limit`; the writer names a step if one is needed."""
        named = self._agreed[0]
        if self.is_writer and self._wanted and named <= step:
            self._agreed = max(self._reach, step) + ahead + 1, "stop" in self._wanted
            self._wanted.clear()
            self._client.key_value_set("step/next", json.dumps(self._agreed), allow_overwrite=True)
        elif not self.is_writer and named <= step:
            for _, value in self._client.key_value_dir_get("step/"):
                self._agreed = tuple(json.loads(value))
        if self._agreed[0] > step:
            limit = min(limit, self._agreed[0])
        self._reach = max(self._reach, min(limit, step + ahead))
        return limit

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """See `SingleProcess.saves_at`."""
        if self._agreed[0] > last:
            return step >= self._agreed[0]
        if is_time and self.is_writer:
            self._wanted.add("save")
        return False

    def ask_to_stop(self, who: str) -> None:
        """Request a step at which all stop, on behalf of `who` (a signal, a limit)."""
        with contextlib.suppress(RuntimeError):  # another one was first, or the store is gone
            self._client.key_value_set("pod/stop", f"{who} in {self.name}")
        if self.is_writer and not self._agreed[1]:
            self._wanted.add("stop")

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """See `SingleProcess.stops_at`."""
        return self._agreed[1] and step >= self._agreed[0]

    # Ends.

    def fail(self, reason: str, message: str) -> None:
        """See `SingleProcess.fail`."""
        is_first, self._is_over = not self._is_over, True
        if is_first and self._client is not None:
            self._failure = _end_of(self.name, reason, message)
            self._farewell("pod/ended", json.dumps([self.name, reason, message]), _FAREWELL_SECONDS)

    def explain(self, error: BaseException) -> CommandError | None:
        """See `SingleProcess.explain`; waits for the news where a sum over devices has failed."""
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
        """See `SingleProcess.finish`; the writer waits until all are done."""
        self.share("over", bool)
        self._is_over = True
        self._farewell("over", "", 2 * HEARTBEAT_SECONDS)
        # Else JAX's client prints a crash where process 0 exits before this one. Where another one
        # is killed at this moment it never returns.
        leaving = in_thread("pod-leave", self._client.shutdown)
        concurrent.futures.wait([leaving], _FAREWELL_SECONDS)

    def detach(self) -> None:
        """Keep JAX from waiting for the other processes when this one exits."""
        if "jax" not in sys.modules:
            return  # refused before it was needed
        from jax._src.distributed import global_state

        kept = (global_state.client, global_state.service)
        global_state.client = global_state.service = None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # their destructors wait, too

    def _farewell(self, folder: str, text: str, seconds: float) -> None:
        """Leave a text for the others.

        The writer, whose end takes the store away, waits until all have left one there, or these
        seconds are over.
        """
        with contextlib.suppress(RuntimeError):  # the others may be gone by now
            self._client.key_value_set(f"{folder}/{self.index}", text)
            end = time.monotonic() + seconds
            while self.is_writer and time.monotonic() < end:
                if len(self._client.key_value_dir_get(f"{folder}/")) == self.count:
                    return
                time.sleep(_POLL_SECONDS / 4)

    def _listen(self) -> None:
        """In a thread: hear requests to stop, and how other processes failed."""
        client = self._client
        while not self._is_over:
            try:
                entries = dict(client.key_value_dir_get("pod/"))
            except RuntimeError:  # the store is gone, and JAX's client will abort
                return
            if "pod/stop" in entries:
                self._stop(entries["pod/stop"])  # again and again, which changes nothing
            for key, value in entries.items():
                if key.startswith("pod/ended/"):
                    self._end(_end_of(*json.loads(value)))
                    return
            time.sleep(_POLL_SECONDS)

    def _cut_off(self) -> None:
        """End this process after the store has gone, which process 0 serves."""
        self._client = None
        self._end(Stalled(_GONE))
        if self._failure is not None:  # a call to the store that is gone may never return
            time.sleep(_FAREWELL_SECONDS)
            self.leave(self._failure)

    def _end(self, news: CommandError) -> None:
        """End this process as another one has ended: where a thread waits in it, or here."""
        if self._news is None and not self._is_over:
            self._news = news
            if not self._waits:
                self.leave(news)


def _end_of(name: str, reason: str, message: str) -> CommandError:
    """Compose the end of this process where another one has failed."""
    if reason == "bug" or reason not in errors.STATUS_OF_REASON:
        return Stalled(f"{name} ended ({reason}: {message}): see its output")
    return errors.of_reason(reason, message if name in message else f"{name}: {message}")
