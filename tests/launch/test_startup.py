"""The start-up script: safe filling, shellcheck, and its two services on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from bigbird_ja.launch import startup
from bigbird_ja.launch.run_files import Run
from bigbird_ja.launch.run_state import Settings
from bigbird_ja.launch.services import API, TpuSpec, delete_address
from bigbird_ja.launch.startup import Vm
from bigbird_ja.process.errors import BadInput
from tests.launch.support import wait_until

HOSTILE = "a'b\"c $(touch /tmp/x) `id` ; rm -rf / # @@MODEL_DIR@@ \\ * ~ & | > <"


def run_of(**changes: object) -> Run:
    spec = TpuSpec("run-1", "v3-8", "image")
    values: dict[str, object] = {"bucket": "gs://b", "name": "run-1", "spec": spec,
                                 "wheel": "gs://b/packages/0/x.whl", "wheel_sha256": "0",
                                 **changes}  # fmt: skip
    return Run(**values)  # type: ignore[arg-type]


def fill(run: Run, limit: float = 3600.0, delete: str = "", **vm: object) -> str:
    return startup.fill(run, Vm(**{"installs": False, **vm}), 1, limit, delete)  # type: ignore[arg-type]


def test_hostile_values_stay_words() -> None:
    script = fill(run_of(bucket=HOSTILE, data_dir=HOSTILE))
    head = script.split("WORK_DIR=")[0]
    probe = f'{head}\nprintf "%s\\n" "$TERMS" "${{PRETRAIN_FLAGS[@]}}" "$WHEEL"'
    out = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True).stdout
    first, _, data, *_, last = out.splitlines()
    assert json.loads(first)["model_dir"] == f"{HOSTILE}/run-1/model"
    assert (data, last) == (f"--data_dir={HOSTILE}", "gs://b/packages/0/x.whl")


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "a\rb"])
def test_control_characters_are_refused(bad: str) -> None:
    with pytest.raises(BadInput, match="control characters"):
        fill(run_of(bucket=bad))


def test_template_and_values_must_agree() -> None:
    with pytest.raises(ValueError, match="UNKNOWN"):
        startup.substitute("x=@@UNKNOWN@@", {})
    with pytest.raises(ValueError, match="EXTRA"):
        startup.substitute("x=1", {"EXTRA": "1"})


def test_queued_resources_are_deleted_by_their_own_name() -> None:
    spec = TpuSpec("run-1", "v3-8", "i")
    assert delete_address("", "p", spec, "z") == f"{API}/projects/p/locations/z/nodes/run-1"
    address = delete_address("", "p", replace(spec, queued=True), "z")
    assert address.endswith("/queuedResources/run-1?force=true")


@pytest.mark.parametrize("filled", [False, True])
def test_shellcheck_is_clean(tmp_path: object, filled: bool) -> None:
    path = f"{tmp_path}/startup.sh"
    text = fill(run_of()) if filled else startup.template()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    # In a filled script constants meet constants; that is what a template is for.
    allowed = ["--exclude=SC2050,SC2194,SC2157,SC2016"] if filled else []
    shellcheck = os.path.join(os.path.dirname(sys.executable), "shellcheck")  # of the lock
    done = subprocess.run([shellcheck, *allowed, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def boot(root: str, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = f"{root}/script"
    with open(path, "w", encoding="utf-8") as file:
        file.write(script)
    for name in ("run-1/supervisor", "run-1/model", "vm"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    vm = {"BIGBIRD_JA_VM_DIR": f"{root}/vm", "BIGBIRD_JA_VM_RUN_DIR": f"{root}/vm"}
    env = {**os.environ, **vm, **environ}
    return subprocess.run(["bash", path], env=env, capture_output=True, text=True, timeout=120)


def local(root: str, **changes: object) -> Run:
    packed = startup.build_wheel()
    path = startup.upload(f"{root}/bucket", packed)
    values = {"bucket": root, "wheel": path, "wheel_sha256": packed.sha256,
              "vm_python": sys.executable, **changes}  # fmt: skip
    return run_of(**values)


def test_a_full_disk_at_boot_does_not_keep_the_watcher_from_starting(tmp_path: object) -> None:
    root = str(tmp_path)
    os.makedirs(f"{root}/bin")
    with open(f"{root}/bin/systemd-run", "w", encoding="utf-8") as file:
        file.write(f'#!/bin/bash\necho "${{@: -2:1}}" >>{root}/calls\n')
    os.chmod(f"{root}/bin/systemd-run", 0o755)
    done = boot(
        root, fill(local(root)), PATH=f"{root}/bin:{os.environ['PATH']}",
        BIGBIRD_JA_VM_DIR="/dev/full/vm",
    )  # fmt: skip
    assert done.returncode != 0
    with open(f"{root}/calls", encoding="utf-8") as file:
        assert file.read() == "watch\n"


def test_systemd_units_start_watch_before_and_train_after_installing(tmp_path: object) -> None:
    """With a `systemctl` that only logs how it is called."""
    root = str(tmp_path)
    os.makedirs(f"{root}/bin")
    for tool, words in (("systemctl", "$*"), ("systemd-run", "$1 $2 ${@: -2:1}")):
        with open(f"{root}/bin/{tool}", "w", encoding="utf-8") as file:
            file.write(f'#!/bin/bash\necho "{words}" >>{root}/calls\n')
        os.chmod(f"{root}/bin/{tool}", 0o755)
    os.makedirs(f"{root}/units")
    script = fill(local(root))
    path = f"{root}/bin:{os.environ['PATH']}"
    done = boot(root, script, PATH=path, BIGBIRD_JA_UNIT_DIR=f"{root}/units")
    assert done.returncode == 0, done.stderr
    with open(f"{root}/calls", encoding="utf-8") as file:
        assert file.read().splitlines() == [
            "--quiet --unit=bigbird-ja-watch watch",
            "daemon-reload",
            "start --no-block bigbird-ja-train.service",
        ]
    with open(f"{root}/units/bigbird-ja-train.service", encoding="utf-8") as file:
        unit = file.read()
    assert "KillMode=mixed" in unit  # SIGTERM goes to the script, which passes it on
    assert f"ExecStart=/bin/bash {root}/vm/startup.sh train" in unit
    with open(f"{root}/vm/startup.sh", encoding="utf-8") as file:
        assert file.read() == script
    assert os.path.exists(f"{root}/vm/package/bigbird_ja/accelerators/prices.yaml")


def test_only_what_the_image_lacks_is_installed_and_nothing_that_is_there_is_replaced(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pip that logs how it is called and what it must leave alone."""
    root = str(tmp_path)
    os.makedirs(f"{root}/bin")
    python = f"{root}/bin/python3"
    with open(python, "w", encoding="utf-8") as file:
        file.write(
            f'#!/bin/bash\ncase "$*" in\n*--constraint*) echo "$*" >{root}/called;'
            f' cp "{root}/vm/constraints.txt" {root}/constraints ;;\n'
            f'*) exec {sys.executable} "$@" ;;\nesac\n'
        )
    os.chmod(python, 0o755)
    lacking = ("numpy==0.0.1", "Not-There>=2,<3", "tensorflow-cpu>=99")
    monkeypatch.setattr(startup, "requirements", lambda: ["one==1"])
    monkeypatch.setattr(startup, "engine_requirements", lambda engine, image: lacking)
    os.makedirs(f"{root}/vm")
    with open(f"{root}/script", "w", encoding="utf-8") as file:
        file.write(fill(local(root, vm_python=python), installs=True))
    done = subprocess.run(
        ["bash", f"{root}/script", "install"], capture_output=True, text=True,
        env={**os.environ, "BIGBIRD_JA_VM_DIR": f"{root}/vm"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open(f"{root}/called", encoding="utf-8") as file:
        assert file.read().endswith("/vm/constraints.txt one==1 Not-There>=2,<3\n")
    with open(f"{root}/constraints", encoding="utf-8") as file:
        kept = {line.partition("==")[0] for line in file}
    assert {"jax", "jaxlib", "numpy", "protobuf"} <= kept


def training(root: str, hosts: int, trainer: str, reporter: str) -> subprocess.Popen[str]:
    """The script where it trains, with a Python that runs one line of bash for the trainer, and
    another for what reports the end."""
    python = f"{root}/python3"
    with open(python, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/bash\ncase "$*" in\n*pretrain*) {trainer} ;;\n*) {reporter} ;;\nesac\n')
    os.chmod(python, 0o755)
    with open(f"{root}/script", "w", encoding="utf-8") as file:
        file.write(fill(run_of(vm_python=python, settings=Settings((), 0, 0.0, hosts=hosts))))
    return subprocess.Popen(
        ["bash", f"{root}/script", "train"], env={**os.environ, "BIGBIRD_JA_VM_DIR": root},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_host_of_a_slice_that_goes_does_not_report_an_end(tmp_path: object, hosts: int) -> None:
    """SIGTERM so early that the trainer has no handler yet: its status is 143, not 75."""
    root = str(tmp_path)
    trainer = f"touch {root}/trains; exec sleep 60"
    process = training(root, hosts, trainer, f'echo "${{@: -1}}" >{root}/called')
    wait_until(lambda: os.path.exists(f"{root}/trains"))
    process.terminate()
    assert process.wait(timeout=30) == 0
    assert os.path.exists(f"{root}/called") == (hosts == 1)
    assert os.path.exists(f"{root}/ended") == (hosts == 1)


def test_a_host_of_a_slice_that_goes_while_it_waits_trains_no_more(tmp_path: object) -> None:
    root = str(tmp_path)
    process = training(root, 2, f"echo >>{root}/trains; exit 75", f"touch {root}/called")
    assert process.stderr is not None
    while "waiting for its successor" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=30) == 0
    with open(f"{root}/trains", encoding="utf-8") as file:
        assert len(file.readlines()) == 1
    assert not os.path.exists(f"{root}/called")


def test_wheel_that_was_changed_is_not_installed(tmp_path: object) -> None:
    root = str(tmp_path)
    changed = local(root, wheel_sha256="0" * 64)
    script = f"{root}/script"
    with open(script, "w", encoding="utf-8") as file:
        file.write(fill(changed, service_manager="none"))
    os.makedirs(f"{root}/run-1/supervisor")
    process = subprocess.Popen(
        ["bash", script],
        env={**os.environ, "BIGBIRD_JA_VM_DIR": f"{root}/vm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: os.path.exists(f"{root}/run-1/supervisor/exit.json"))
        assert process.poll() is None  # the watcher stays
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not os.path.exists(f"{root}/vm/package")
    with open(f"{root}/run-1/supervisor/exit.json", encoding="utf-8") as file:
        assert '"attempt": 1, "status": 1' in file.read()
    with open(f"{root}/run-1/supervisor/training.log", encoding="utf-8") as file:
        log = file.read()
    assert "installation failed" in log and "FAILED" in log  # sha256sum's word too


def test_wheel_is_reproducible_and_installs(tmp_path: object) -> None:
    first, second = startup.build_wheel(), startup.build_wheel()
    assert first.content == second.content
    path = f"{tmp_path}/{first.file_name}"
    with open(path, "wb") as file:
        file.write(first.content)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", f"{tmp_path}/site", path], check=True)
    code = "import bigbird_ja.launch.startup as s; print(len(s.template()), s.__file__)"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/site"},
        cwd=str(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(tmp_path) in out
