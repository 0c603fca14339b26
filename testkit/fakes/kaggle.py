"""Kaggle's command line and the service behind it, played by a program with its state on disk.

`install` puts an executable `kaggle` into a folder for the PATH. A session passes through queued
and running, one state per question, and ends as the test's `sessions` say; what it can see is what
is attached to it, so a run that is not brought along begins from nothing. Answers are worded and
statuses given as Kaggle/kaggle-cli of July 2026 does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

from testkit import ROOT

STEPS = 100  # of the whole run
_WAITS = ("QUEUED", "RUNNING")
_HELP = {"kernels": ("push", "status", "output"), "datasets": ("create", "version", "status")}


def install(folder: Path, **state: Any) -> Path:
    """Makes `folder`/bin/kaggle and its service.

    Args:
        state: `sessions`, one for each push: how it ends ("complete", "killed", "diverged",
            "bad_input"), or a number of steps that it makes (50 by default); `faults`, by command
            ("kernels push"): answers that come first, each {"out", "err", "status"}; `quota`:
            hours that are left of the week at each question, the last for good; `dies_at`: numbers
            of calls after which the caller is killed.

    Returns:
        The folder for the PATH.
    """
    program = folder / "bin/kaggle"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT}\n"
        f'exec {sys.executable} -m testkit.fakes.kaggle {folder} "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    start = {"sessions": [], "faults": {}, "quota": [20.0], "dies_at": [], "calls": [],
             "pushed": [], "kernel": None, "datasets": {}}  # fmt: skip
    write(folder, {**start, **state})
    return program.parent


def read(folder: Path) -> dict[str, Any]:
    """The service's state; `calls` and `pushed` tell what was asked of it."""
    return json.loads((folder / "service.json").read_text())


def write(folder: Path, state: dict[str, Any]) -> None:
    """Replaces the state."""
    (folder / "service.json").write_text(json.dumps(state, indent=1))


class Fail(Exception):
    """What the command prints on standard error, with status 1."""


class Service:
    """Answers one call."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._state = folder, read(folder)

    def answer(self, words: list[str]) -> int:
        """Prints what the command would; its exit status."""
        state = self._state
        name = " ".join(words[: 2 if words[0] in _HELP else 1])
        state["calls"].append(name)
        faults = state["faults"].get(name, [])
        if faults:
            fault = faults.pop(0)
            print(fault.get("out", ""))
            print(fault.get("err", ""), file=sys.stderr)
            status = fault.get("status", 0)
        else:
            try:
                print(getattr(self, "_" + name.replace(" ", "_"))(words[1:]))
                status = 0
            except Fail as error:
                print(error, file=sys.stderr)
                status = 1
        dies = len(state["calls"]) in state["dies_at"]
        write(self._folder, state)
        if dies:
            os.kill(os.getppid(), signal.SIGKILL)
        return status

    def _quota(self, words: list[str]) -> str:
        assert words == ["--csv"]
        hours = self._state["quota"]
        left = hours.pop(0) if len(hours) > 1 else hours[0]
        head = "resource,used,remaining,total,refreshAt"
        return f"{head}\nGPU,0.00h,30.00h,30.00h,\nTPU,1.00h,{left:.2f}h,20.00h,2026-01-01T00:00:00"

    def _kernels_push(self, words: list[str]) -> str:
        folder = Path(_option(words, "-p"))
        about = json.loads((folder / "kernel-metadata.json").read_text())
        notebook = json.loads((folder / about["code_file"]).read_text())
        assert "docker_image" not in about and "kaggle" not in notebook["metadata"]
        assert about["is_private"] and about["enable_tpu"] and about["enable_internet"]
        (cell,) = [c for c in notebook["cells"] if c["metadata"].get("tags") == ["parameters"]]
        values: dict[str, Any] = {}
        exec("".join(cell["source"]), values)
        values = {key: value for key, value in values.items() if key.isupper()}
        state, old = self._state, self._state["kernel"]
        assert old is None or not old["waits"], "a second session beside the first"
        unknown = [name for name in about["dataset_sources"] if name not in state["datasets"]]
        pushed = {"values": values, "datasets": about["dataset_sources"], "unknown": unknown,
                  "accelerator": _option(words, "--accelerator")}  # fmt: skip
        state["pushed"].append(pushed)
        state["kernel"] = {"id": about["id"], "waits": list(_WAITS)}
        self._run_session(values, about["dataset_sources"])
        if unknown:
            return f"The following are not valid dataset sources and could not be added: {unknown}"
        return f"Kernel version {len(state['pushed'])} successfully pushed.  Please check progress"

    def _run_session(self, values: dict[str, Any], attached: list[str]) -> None:
        """All of it at once; what comes out is seen once the session has ended."""
        state, output = self._state, self._folder / "output"
        how = state["sessions"].pop(0) if state["sessions"] else 50
        inputs = {name.rpartition("-")[2]: self._folder / "datasets" / name for name in attached}
        step = _step_of(inputs["run"]) if "run" in inputs else 0
        shutil.rmtree(output, ignore_errors=True)
        if step != values["EXPECTED_STEP"]:
            how, state["kernel"]["why"] = "killed", f"the inputs hold the run at step {step}"
        if how in ("killed", "bad_input"):
            line = "RuntimeError: the command above ended with status 2: its last line says why"
            error = f"bigbird-ja: --input x: no such file\n{line}\n" if how == "bad_input" else ""
            log = [{"stream_name": "stderr", "time": 1.0, "data": f"starting\n{error}"}]
            output.mkdir()
            (output / "run.log").write_text(json.dumps(log))
            state["kernel"]["status"] = "ERROR"
            return
        root = output / "bigbird-ja"
        result: dict[str, Any] = {"reason": "diverged", "error": "step 7: NaN", "global_step": step}
        if how != "diverged":
            made = min(STEPS, step + (how if isinstance(how, int) else 50))
            result = {"reason": "finished" if made == STEPS else "interrupted", "global_step": made}
        (root / "model").mkdir(parents=True)
        (root / "model/heartbeat.json").write_text(
            json.dumps({"global_step": result["global_step"]})
        )
        if "data" not in inputs:
            (root / "data").mkdir()
            (root / "data/manifest.json").write_text("{}")
        (root / "session.json").write_text(json.dumps(result))
        files = {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file()}
        content = {"session": values["SESSION"], "files": files}
        (root / "files.json").write_text(json.dumps(content))
        state["kernel"]["status"] = "COMPLETE"

    def _kernels_status(self, words: list[str]) -> str:
        kernel = self._state["kernel"]
        if kernel is None or kernel["id"] != words[1]:
            raise Fail(f"Cannot access kernel '{words[1]}' (Permission 'kernels.get' was denied).")
        status = kernel["waits"].pop(0) if kernel["waits"] else kernel["status"]
        text = f'{words[1]} has status "KernelWorkerStatus.{status}"'
        return f'{text}\nFailure message: "{kernel["why"]}"' if kernel.get("why") else text

    def _kernels_output(self, words: list[str]) -> str:
        shutil.copytree(self._folder / "output", _option(words, "-p"), dirs_exist_ok=True)
        for name in self._state.pop("cut", []):
            path = next(Path(_option(words, "-p")).rglob(name))
            path.write_bytes(path.read_bytes()[:-1])
        return ""

    def _datasets_create(self, words: list[str]) -> str:
        return self._take_files(words, is_new=True)

    def _datasets_version(self, words: list[str]) -> str:
        assert _option(words, "-m") and "-d" in words, "old versions would fill the account"
        return self._take_files(words, is_new=False)

    def _take_files(self, words: list[str], is_new: bool) -> str:
        folder = Path(_option(words, "-p"))
        about = json.loads((folder / "dataset-metadata.json").read_text())
        name, there = about["id"], self._state["datasets"]
        if not re.fullmatch(r"[\w-]+/[\w-]{6,50}", name) or (name in there) == is_new:
            return f"Dataset creation error: {name} cannot be made"
        place = self._folder / "datasets" / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for path in folder.iterdir():  # folders are skipped, as by default
            if path.is_file() and path.name != "dataset-metadata.json":
                shutil.copy(path, place)
        there[name] = there.get(name, 0) + 1
        self._state["pending"] = name
        return "Your private Dataset is being created. Please check progress at https://..."

    def _datasets_status(self, words: list[str]) -> str:
        if words[1] not in self._state["datasets"]:
            raise Fail("404 Client Error: Not Found for url: https://api.kaggle.com/...")
        is_pending = self._state.pop("pending", None) == words[1]
        return "pending" if is_pending else "ready"


def _option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def _step_of(place: Path) -> int:
    with tarfile.open(place / "run.tar") as archive:
        file = archive.extractfile("model/heartbeat.json")
        assert file is not None
        return json.load(file)["global_step"]


if __name__ == "__main__":
    sys.exit(Service(Path(sys.argv[1])).answer(sys.argv[2:]))
