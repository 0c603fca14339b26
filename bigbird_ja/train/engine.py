"""One run of `pretrain`, from the first look at MODEL_DIR to the recorded end.

Reads from top to bottom: refuse what can be refused, take the lock, find where to continue, train,
save, say how it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from bigbird_ja import config as config_lib
from bigbird_ja import storage
from bigbird_ja.errors import (
    BadInput,
    CommandError,
    Interrupted,
    StorageError,
    classify,
    telling_line,
)
from bigbird_ja.lease import Lease
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.model import check_tokenizer
from bigbird_ja.train import checks, environment, run_directory
from bigbird_ja.train.recorder import Recorder
from bigbird_ja.train.request import Request
from bigbird_ja.train.session import Session
from bigbird_ja.train.signals import StopRequest

SCRATCH = ".scratch"  # in a MODEL_DIR on disk; wiped at each start


def pretrain(request: Request, stop: StopRequest) -> dict[str, Any]:
    """Trains or resumes to the end.

    Returns:
        The `--json` results.

    Raises:
        CommandError: every other end, recorded in MODEL_DIR once work has begun there; its
            `results` carry `global_step` and `loss`.
    """
    config, effects, model_dir = request.config, request.effects, request.model_dir
    effects.mark("start-up")
    if not request.overwrite:
        run_directory.check_settings(model_dir, config)
    guard = checks.check(request)
    initial = _load_initial(request)
    if request.overwrite:
        _move_aside(request)
    with _directory(model_dir), _held(request) as (lock, notes), _scratch(model_dir) as scratch:

        def report(event: str, step: int, text: str) -> None:
            effects.log(text)
            notes.append({"event": event, "global_step": step, "message": text})

        store = CheckpointStore(model_dir, scratch, report, effects.mark)
        found = run_directory.find_resumption(
            store, config, request.manifest.fingerprint, effects.log
        )
        check_tokenizer(model_dir, request.manifest.tokenizer_sha256)
        recorder = Recorder(request, found, scratch)
        for note in notes:
            recorder.event(**note)
        session = Session(request, stop, lock, guard, store, scratch, found, recorder, initial)
        if found.step >= config.training.num_train_steps:
            effects.log(f"{model_dir}: already at step {found.step:,}: nothing left to do")
            return session.results("finished")
        stop.leave = lambda message: session.leave("interrupted", message)
        return _run(request, stop, session, recorder, found)


def _run(
    request: Request,
    stop: StopRequest,
    session: Session,
    recorder: Recorder,
    found: run_directory.Resumption,
) -> dict[str, Any]:
    """Trains, and records the end, whichever it is."""
    try:
        tokenizer = storage.join(request.data_dir, run_directory.TOKENIZER)
        run_directory.write_settings(request.model_dir, request.config, tokenizer)
        recorder.event(
            "started" if found.checkpoint is None else "resumed",
            global_step=found.step,
            interruptions=found.interruptions,
            config=config_lib.fingerprint(request.config)[:16],
            data=request.manifest.fingerprint[:16],
            environment=environment.describe(request.use_tpu, request.cores),
        )
        recorder.heartbeat.write(state="starting")
        reason = session.train()
    except BaseException as error:
        known = _end_of(error)
        recorder.ended(known.reason if known else "bug", known or error)
        if known is None:
            raise
        known.results = session.results(known.reason)  # type: ignore[attr-defined]
        raise known from error
    recorder.ended(reason, None)
    if reason == "interrupted":
        stopped = Interrupted(
            f"{stop.name}: saved at step {recorder.step:,}: run the same command again to continue"
        )
        stopped.results = session.results(reason)  # type: ignore[attr-defined]
        raise stopped
    return session.results(reason)


def _end_of(error: BaseException) -> CommandError | None:
    """As `errors.classify`, but what was permitted at the start and is refused or gone in mid run
    is storage failing, not bad input."""
    if isinstance(error, (PermissionError, FileNotFoundError)):
        what = error.strerror or "refused"
        return StorageError(f"{error.filename or error}: {what} in mid run: run again")
    if type(error).__name__ in ("PermissionDeniedError", "NotFoundError"):
        return StorageError(f"refused in mid run: {telling_line(error)}: run again")
    return classify(error)


def _load_initial(request: Request) -> Mapping[str, Any] | None:
    """Parameters of `--init_from`, for a fresh start only."""
    if not request.init_from:
        return None
    if not request.overwrite and CheckpointStore(request.model_dir).has_any():
        request.effects.log(f"--init_from is left out: {request.model_dir} is resumed")
        return None
    from bigbird_ja.train.init_from import load_initial

    params, table = load_initial(request.init_from, request.config)
    request.effects.log(table)
    return params


def _move_aside(request: Request) -> None:
    """`--overwrite`: renames the run that is in MODEL_DIR, with its lock held while it is renamed.

    Raises:
        BadInput: a trainer is at work there, or what is there is no run of ours.
    """
    if not run_directory.check_movable(request.model_dir):
        return
    with _held(request):
        moved = run_directory.move_aside(request.model_dir)
    request.effects.log(f"{request.model_dir}: the run that was there is now {moved}")


@contextlib.contextmanager
def _directory(model_dir: str) -> Iterator[None]:
    """MODEL_DIR; removed again where the run was refused before anything was written."""
    try:
        storage.make_directory(model_dir)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"{model_dir}: not a directory: choose another --model_dir") from error
    try:
        yield
    finally:
        if not storage.is_remote(model_dir):
            with contextlib.suppress(OSError):
                os.rmdir(model_dir)  # only an empty one goes


@contextlib.contextmanager
def _held(request: Request) -> Iterator[tuple[Lease, list[dict[str, Any]]]]:
    """The lock, and what is to be noted in events.jsonl about how it was got."""
    model_dir, effects = request.model_dir, request.effects

    def busy(owner: str) -> str:
        return f"{model_dir}: {owner} is training here: stop it first, or use another --model_dir"

    lock = Lease(
        storage.join(model_dir, run_directory.LOCK), busy, effects.log, clock=effects.monotonic
    )
    found = lock.acquire()
    notes: list[dict[str, Any]] = []
    if found:
        notes = [{"event": "lock_taken_over", "from_pid": found.pid, "from_host": found.host}]
    try:
        yield lock, notes
    finally:
        with contextlib.suppress(Exception):
            lock.release()


@contextlib.contextmanager
def _scratch(model_dir: str) -> Iterator[str]:
    """A local directory for this run, empty, gone at the end; a killed run's is wiped first.

    On the disk of MODEL_DIR, where that is local: checkpoints are then moved, not copied.
    """
    if storage.is_remote(model_dir):
        name = hashlib.sha256(model_dir.rstrip("/").encode()).hexdigest()[:16]
        path = os.path.join(tempfile.gettempdir(), f"bigbird-ja-{os.getuid()}-{name}")
    else:
        path = os.path.join(model_dir, SCRATCH)
        storage.clean_temporary(model_dir)
    if os.path.islink(path):
        raise BadInput(f"{path}: a link where a scratch directory belongs: remove it")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
