"""What a run writes and says before its first step, and how that is taken back."""

from __future__ import annotations

import contextlib
import os

from bigbird_ja import storage
from bigbird_ja.run.model import CONTINUED
from bigbird_ja.run.records import EventRecord
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.settings.values import config_fingerprint
from bigbird_ja.train import continuation, environment, run_directory
from bigbird_ja.train.recorder import Recorder
from bigbird_ja.train.request import Request

COMPILED = "compiled"  # folder of programs, kept for the next start


class Beginning:
    """The start of this process's part of a run, written by the writer of the run alone."""

    def __init__(
        self, request: Request, found: run_directory.Resumption, recorder: Recorder
    ) -> None:
        self._request, self._config, self._around = request, request.config, request.surroundings
        self._found, self._recorder = found, recorder
        self._there_before: set[str] = set()  # files of MODEL_DIR when this process began to write
        self.has_stepped = False  # whether a step was tried

    def write(self) -> None:
        """Settings, the tokenizer, the start in events.jsonl, the first heartbeat."""
        if not self._request.pod.is_writer:
            return
        request, found = self._request, self._found
        self._there_before = set(storage.list_files(request.model_dir))
        before = run_directory.last_start(request.model_dir)
        tokenizer = storage.join(request.data_dir, run_directory.TOKENIZER)
        self._tell_settings()
        run_directory.write_settings(request.model_dir, self._config, tokenizer)
        self._recorder.event(
            "started" if found.checkpoint is None else "resumed",
            global_step=found.step,
            interruptions=found.interruptions,
            config=config_fingerprint(self._config)[:16],
            data=request.manifest.fingerprint[:16],
            engine=request.engine.name,
            engine_why=request.engine.why,
            replicas=request.engine.replicas,
            processes=request.engine.processes,
            environment=environment.describe(request.engine.device),
        )
        if before is not None:
            self._tell_changes(before)
        self._recorder.heartbeat.write(state="starting")

    def _tell_settings(self) -> None:
        """Says and records with what other settings the run goes on; before they are written."""
        path = run_directory.settings_of(self._request.model_dir)
        if path is None or self._found.checkpoint is None:
            return
        before, step = read_config(path), self._found.step
        if changed := continuation.changes(before, self._config):
            named = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())
            self._around.log(f"from step {step:,} on with {named}")
            self._recorder.event(
                CONTINUED,
                global_step=step,
                settings=changed,
                was=config_fingerprint(before),
                now=config_fingerprint(self._config),
            )
        if words := continuation.schedule_words(before, self._config, step):
            self._around.log(words)
            self._recorder.event("schedule_changed", global_step=step, message=words)

    def _tell_changes(self, before: EventRecord) -> None:
        """Says where another engine, or another number of devices or processes, goes on with the
        run."""
        engine, step = self._request.engine, self._found.step
        name, replicas = before.get("engine", "estimator"), before.get("replicas")
        if name != engine.name:
            text = f"this run was trained by the engine {name} and goes on under {engine.name}"
            self._around.log(f"{text}: equal to rounding")
            self._recorder.event("engine_changed", global_step=step, was=name, now=engine.name)
        if replicas is not None and replicas != engine.replicas:
            text = f"this run was trained on {replicas} replicas and goes on on {engine.replicas}"
            self._around.log(f"{text}: sums are equal to rounding, dropout is drawn per replica")
            self._recorder.event(
                "replicas_changed", global_step=step, was=replicas, now=engine.replicas
            )

        processes = before.get("processes", 1)
        if processes != engine.processes:
            text = f"this run was trained by {processes} processes and goes on by"
            self._around.log(f"{text} {engine.processes}: other sequences meet on each replica")
            self._recorder.event(
                "processes_changed", global_step=step, was=processes, now=engine.processes
            )

    def is_untouched(self) -> bool:
        """Whether this is a new run of which no step was tried."""
        return self._found.checkpoint is None and not self.has_stepped

    def take_back(self) -> None:
        """What the engine refuses before the first step of a new run leaves nothing behind."""
        if not self._request.pod.is_writer:
            return
        model_dir = self._request.model_dir
        for name in set(storage.list_files(model_dir)) - self._there_before:
            storage.delete(storage.join(model_dir, name))
        if not storage.is_remote(model_dir):
            with contextlib.suppress(OSError):  # only an empty one goes
                os.rmdir(storage.join(model_dir, COMPILED))
