"""One run of `pretrain`, from the first look at MODEL_DIR to the recorded end.

Reads from top to bottom: refuse what can be refused, take the lock, find where to continue, train
(`train.part`), say how it ended. In a pod the writer does all of it, and the others follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigbird_ja.data.verify import DataGuard
from bigbird_ja.process.signals import StopRequest
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.model import check_tokenizer
from bigbird_ja.storage import outputs
from bigbird_ja.storage.scratch import scratch_directory
from bigbird_ja.train import checks, hosts, run_directory, workspace
from bigbird_ja.train.part import Part
from bigbird_ja.train.recorder import Bystander, Recorder
from bigbird_ja.train.request import Request


def pretrain(request: Request, stop: StopRequest) -> dict[str, Any]:
    """Trains or resumes to the end.

    Returns:
        The `--json` results.

    Raises:
        CommandError: every other end, recorded in MODEL_DIR once work has begun there; its
            `results` carry `global_step` and `loss`.
    """
    config, around, model_dir = request.config, request.surroundings, request.model_dir
    around.mark("start-up")
    outputs.check_folder_place(model_dir, "--model_dir")
    if not request.overwrite:
        run_directory.check_settings(model_dir, config, request.continue_with)
    guard = checks.check(request)
    warm_start = _load_warm_start(request)
    request.pod.barrier("checked")
    if not request.pod.is_writer:
        return _follow(request, stop, guard, warm_start)
    if request.overwrite:
        workspace.move_aside(request)
    with (
        workspace.directory(model_dir),
        workspace.held(request) as (lock, notes),
        workspace.scratch(model_dir) as scratch,
    ):

        def report(event: str, step: int, text: str) -> None:
            around.log(text)
            notes.append({"event": event, "global_step": step, "message": text})

        store = CheckpointStore(model_dir, scratch, report, around.mark)
        found = run_directory.find_resumption(
            store, config, request.manifest.fingerprint, around.log, bool(request.continue_with)
        )
        check_tokenizer(model_dir, request.manifest.tokenizer_sha256)
        request.pod.share("start", lambda: {"lease": lock.owner.id, **found.shared()})
        request.pod.barrier("ready")
        recorder = Recorder(request, found, scratch)
        for note in notes:
            recorder.event(**note)
        part = Part(request, stop, lock, guard, store, scratch, found, recorder, warm_start)
        if found.step >= config.training.num_train_steps:
            around.log(
                f"{model_dir}: already at step {found.step:,}: nothing left to do (a larger"
                " --num_train_steps continues)"
            )
            return part.complete()
        return part.train()


def _follow(
    request: Request, stop: StopRequest, guard: DataGuard, warm_start: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The part of a process that does not write: it goes on where the writer does."""
    around, model_dir = request.surroundings, request.model_dir
    start = request.pod.share("start", dict)
    with scratch_directory() as scratch:
        hosts.check_same_folder(model_dir, start.pop("lease"), around.clock)
        store = CheckpointStore(model_dir, scratch, mark=around.mark)
        found = run_directory.Resumption.at(store, **start)
        check_tokenizer(model_dir, request.manifest.tokenizer_sha256)
        request.pod.barrier("ready")
        recorder = Bystander(request, found, scratch)
        part = Part(request, stop, None, guard, store, scratch, found, recorder, warm_start)
        if found.step >= request.config.training.num_train_steps:
            return part.complete()
        return part.train()


def _load_warm_start(request: Request) -> Mapping[str, Any] | None:
    """Parameters of `--init_from`, for a fresh start only."""
    if not request.init_from:
        return None
    if not request.overwrite and CheckpointStore(request.model_dir).has_any():
        request.surroundings.log(f"--init_from is left out: {request.model_dir} is resumed")
        return None
    from bigbird_ja.train.init_from import load_initial

    params, table = load_initial(
        request.init_from, request.config, request.manifest.tokenizer_sha256
    )
    request.surroundings.log(table)
    return params
