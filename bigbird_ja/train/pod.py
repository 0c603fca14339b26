"""Processes of a pod, one per host, that train one run together.

They use JAX's coordination service (`jax.distributed`), which process 0 serves. The service
connects the processes, and ends all of them if one dies (heartbeats). It contains a key-value
store, through which the processes communicate. Process 0 is the writer: it owns the lease on
MODEL_DIR and writes its files.

**One step for all.** A JAX program runs on all devices together, so all processes must save or stop
at the same step. The writer chooses that step and writes it to the store. The step must be so far
ahead that no process has dispatched it yet. Two facts limit how far a process can be ahead of the
writer. First, every step sums over all devices, so no process finishes a step before the writer
dispatches it. Second, a process dispatches at most `ahead` steps beyond its last finished step
before it reads the store again. (JAX's `reached_preemption_sync_point` is not sufficient, as it
works only once and only for SIGTERM, whose handler it replaces. Saves by time, Ctrl-C and
`max_train_minutes` need an agreement, too.)

**One outcome for all.** A process that fails writes the reason to the store, and the other
processes end with the same reason. If a process is killed, JAX's client aborts the others, and
`signals.call_on_abort` converts the abort to exit status 76.
"""

import concurrent.futures
import contextlib
import io
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bigbird_ja import compat, errors
from bigbird_ja.errors import BadInput, CommandError, Stalled
from bigbird_ja.process.classify import summarize_error
from bigbird_ja.process.signals import StopRequest, call_on_abort
from bigbird_ja.train.exit import ProcessExit
from bigbird_ja.train.processes import NamedArrays
from bigbird_ja.train.threads import run_in_thread

# Variable with the hosts that gRPC reaches without a proxy. gRPC reads only its lower-case name.
_NO_PROXY = "no_grpc_proxy"
# Seconds without a heartbeat after which JAX considers a process dead.
HEARTBEAT_SECONDS = 40
_POLL_SECONDS = 0.2
# Time for the other processes to read the failure of process 0, before process 0 closes the store.
_FINAL_STATUS_SECONDS = 10.0
# Timeout in milliseconds of calls that wait for other processes. It is long, since a failure of
# another process ends the wait anyway.
_DAY_MS = 24 * 3600 * 1000
_GONE = (
    "another process of this pod was killed, or its machine or network failed. The last checkpoint"
    " is good: rerun the same command on every host"
)


class Pod:
    """Connection of this process to the other processes of its pod.

    Args:
        index: number of this process, from 0.
        count: number of processes.
        host: name of this process's machine, for messages.
        stop: request to stop this process. A request to one process stops all processes.
        exit_process: callback that ends this process when another one has failed.
    """

    def __init__(
        self, index: int, count: int, host: str, stop: StopRequest, exit_process: ProcessExit
    ) -> None:
        self.index, self.count, self.is_writer = index, count, index == 0
        self.name = f"process {index} on {host}"
        self._stop, self._exit = stop, exit_process
        exit_process.add_callback(lambda error: self.fail(error.reason, str(error)))
        # Client of the store, or None before it is connected and after it is lost.
        self._client: Any = None
        # Whether this process has failed or finished.
        self._is_over = False
        # Failure of this process.
        self._failure: CommandError | None = None
        # Failure of another process.
        self._remote_failure: CommandError | None = None
        # Whether the main thread waits for other processes. If one of them fails, the main thread
        # raises the failure.
        self._waits = False
        # Pending requests ("stop", "save"), for which the writer must choose a step.
        self._requests: set[str] = set()
        # The last step that the writer chose, and whether all processes stop at that step.
        self._agreed = (-1, False)
        # The last step that this process may have dispatched.
        self._max_dispatched = -1

    def connect(
        self, address: str, platform: str, seconds: float, check: Callable[[], None]
    ) -> None:
        """Connect the processes before JAX is used, so that `jax.devices()` returns all devices.

        Args:
            address: HOST:PORT at which process 0 serves.
            platform: "cpu", "cuda" or "tpu".
            seconds: maximum wait for the other processes.
            check: callback that is called repeatedly during the wait. It may raise to end the wait.

        Raises:
            BadInput: Some process has not connected in time, or the address cannot be used.
        """
        never_met = BadInput(
            f"the {self.count} processes did not meet at JAX_COORDINATOR_ADDRESS={address} within"
            f" {seconds:.0f} s (`pod_wait_seconds`): start the same command on every host, each"
            " with its own JAX_PROCESS_ID, and check the address"
        )
        end = time.monotonic() + seconds

        def check_time() -> None:
            check()
            if time.monotonic() > end:
                raise never_met

        call_on_abort(lambda: self._exit(never_met))
        try:
            self._wait_for(lambda: self._initialize(address, platform, seconds), check_time)
        except RuntimeError as error:
            raise BadInput(
                f"process {self.index} cannot start at JAX_COORDINATOR_ADDRESS={address}"
                f" ({summarize_error(error)}): stop any other run whose process 0 uses this"
                " address, or set JAX_COORDINATOR_ADDRESS to a free port of the host of process 0"
            ) from error
        self._client = compat.get_coordination_client()
        call_on_abort(self._cut_off)
        run_in_thread("pod", self._listen)

    def _initialize(self, address: str, platform: str, seconds: float) -> None:
        import jax

        host, _, port = address.rpartition(":")
        is_local = host in ("localhost", "[::1]") or host.startswith("127.")
        # Without `no_grpc_proxy`, gRPC would use a proxy even for a machine in the same network.
        # JAX warns about proxy variables, so its warnings are disabled.
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
            # JAX would abort the process at this timeout. It is so long that `check_time` raises
            # first.
            initialization_timeout=int(seconds) + 3600,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=f"{host if is_local else '[::]'}:{port}",
        )

    def barrier(self, name: str) -> None:
        """Implement `Processes.barrier`."""
        self._wait_for(lambda: self._client.wait_at_barrier(name, _DAY_MS))

    def share(self, name: str, make: Callable[[], Any]) -> Any:
        """Implement `Processes.share`.

        The writer stores the value in the key-value store, where the other processes read it.
        """
        if not self.is_writer:
            return json.loads(self._get(f"share/{name}"))
        value = make()
        self._client.key_value_set_bytes(f"share/{name}", json.dumps(value).encode())
        return value

    def collect(
        self, key: str, arrays: NamedArrays, poll: Callable[[], None]
    ) -> list[NamedArrays] | None:
        """Implement `Processes.collect`."""
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
        return bytes(self._wait_for(lambda: get(key, _DAY_MS), check))

    def _wait_for(self, call: Callable[[], Any], check: Callable[[], None] = lambda: None) -> Any:
        """Return the result of a call that waits for other processes.

        The call runs in a separate thread. The wait ends if `check` raises, or if another process
        fails.
        """
        self._waits = True
        future = run_in_thread("pod-wait", call)
        try:
            while not future.done() and self._remote_failure is None:
                check()
                concurrent.futures.wait([future], _POLL_SECONDS)
        finally:
            self._waits = False
        if self._remote_failure is not None:
            raise self._remote_failure
        return future.result()

    def choose_limit(self, step: int, limit: int, ahead: int) -> int:
        """Implement `Processes.choose_limit`.

        If a save or stop is requested, the writer chooses the step at which all processes save or
        stop. The other processes read that step from the store.
        """
        named = self._agreed[0]
        if self.is_writer and self._requests and named <= step:
            self._agreed = max(self._max_dispatched, step) + ahead + 1, "stop" in self._requests
            self._requests.clear()
            self._client.key_value_set("step/next", json.dumps(self._agreed), allow_overwrite=True)
        elif not self.is_writer and named <= step:
            for _, value in self._client.key_value_dir_get("step/"):
                self._agreed = tuple(json.loads(value))
        if self._agreed[0] > step:
            limit = min(limit, self._agreed[0])
        self._max_dispatched = max(self._max_dispatched, min(limit, step + ahead))
        return limit

    def saves_at(self, step: int, last: int, is_time: bool) -> bool:
        """Implement `Processes.saves_at`."""
        if self._agreed[0] > last:
            return step >= self._agreed[0]
        if is_time and self.is_writer:
            self._requests.add("save")
        return False

    def ask_to_stop(self, who: str) -> None:
        """Ask all processes to stop, because of `who` (the name of a signal or of a limit)."""
        # The write fails if another process has already asked to stop, or if the store is lost.
        with contextlib.suppress(RuntimeError):
            self._client.key_value_set("pod/stop", f"{who} in {self.name}")
        if self.is_writer and not self._agreed[1]:
            self._requests.add("stop")

    def stops_at(self, step: int, is_requested: bool) -> bool:
        """Implement `Processes.stops_at`."""
        return self._agreed[1] and step >= self._agreed[0]

    def fail(self, reason: str, message: str) -> None:
        """Implement `Processes.fail`."""
        is_first, self._is_over = not self._is_over, True
        if is_first and self._client is not None:
            self._failure = _make_remote_error(self.name, reason, message)
            status = json.dumps([self.name, reason, message])
            self._post_final_status("pod/ended", status, _FINAL_STATUS_SECONDS)

    def explain(self, error: BaseException) -> CommandError | None:
        """Implement `Processes.explain`.

        After an error of JAX's runtime, this process waits up to a minute until another process
        reports the failure that caused the error.
        """
        # Gloo sums over processes on CPUs. It fails at once if another process is lost.
        if "Gloo" in str(error):
            return self._remote_failure or Stalled(_GONE)
        if type(error).__name__ not in ("JaxRuntimeError", "XlaRuntimeError"):
            return None
        end = time.monotonic() + HEARTBEAT_SECONDS + _FINAL_STATUS_SECONDS
        self._waits = True
        while time.monotonic() < end and self._remote_failure is None and not self._is_over:
            time.sleep(_POLL_SECONDS)
        return self._remote_failure

    def finish(self) -> None:
        """Implement `Processes.finish`.

        The writer waits until all processes have finished the run.
        """
        self.share("over", bool)
        self._is_over = True
        self._post_final_status("over", "", 2 * HEARTBEAT_SECONDS)
        # Without `shutdown`, JAX's client prints a crash if process 0 exits before this process. If
        # another process is killed meanwhile, `shutdown` never returns, so it runs in a thread.
        leaving = run_in_thread("pod-leave", self._client.shutdown)
        concurrent.futures.wait([leaving], _FINAL_STATUS_SECONDS)

    def detach(self) -> None:
        """Prevent JAX from waiting for the other processes when this process exits."""
        compat.leave_coordination_service()

    def _post_final_status(self, folder: str, text: str, seconds: float) -> None:
        """Write a text to the store for the other processes.

        The store closes when the writer exits. So the writer waits until all processes have written
        their texts, for at most `seconds`.
        """
        with contextlib.suppress(RuntimeError):  # The store may be lost.
            self._client.key_value_set(f"{folder}/{self.index}", text)
            end = time.monotonic() + seconds
            while self.is_writer and time.monotonic() < end:
                if len(self._client.key_value_dir_get(f"{folder}/")) == self.count:
                    return
                time.sleep(_POLL_SECONDS / 4)

    def _listen(self) -> None:
        """Exchange requests to stop, and read failures of other processes, in a thread."""
        client, is_stopping = self._client, False
        while not self._is_over:
            if self._stop.is_set() and not is_stopping:
                is_stopping = True
                self.ask_to_stop(self._stop.name)
            try:
                entries = dict(client.key_value_dir_get("pod/"))
            # The store is lost, so JAX's client will abort this process.
            except RuntimeError:
                return
            if "pod/stop" in entries:
                self._stop.ask(entries["pod/stop"])  # A repeated request changes nothing.
            for key, value in entries.items():
                if key.startswith("pod/ended/"):
                    self._end(_make_remote_error(*json.loads(value)))
                    return
            time.sleep(_POLL_SECONDS)

    def _cut_off(self) -> None:
        """End this process, since it has lost the key-value store, which process 0 serves."""
        self._client = None
        self._end(Stalled(_GONE))
        # If this process itself has failed, `_end` does nothing, and a call to the lost store may
        # block the main thread forever. So end the process here, in a background thread.
        if self._failure is not None:
            time.sleep(_FINAL_STATUS_SECONDS)
            self._exit(self._failure)

    def _end(self, news: CommandError) -> None:
        """End this process with the failure of another process.

        If the main thread waits for other processes, the main thread raises the failure. Otherwise
        the process exits at once.
        """
        if self._remote_failure is None and not self._is_over:
            self._remote_failure = news
            if not self._waits:
                self._exit(news)


def _make_remote_error(name: str, reason: str, message: str) -> CommandError:
    """Return the error with which this process ends after process `name` has failed."""
    if reason == "bug" or reason not in errors.STATUS_OF_REASON:
        return Stalled(f"{name} ended ({reason}: {message}): see its output")
    return errors.make_error(reason, message if name in message else f"{name}: {message}")
