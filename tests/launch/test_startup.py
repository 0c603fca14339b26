"""The start-up script: safe filling, shellcheck, and its two services on this machine."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja.launch import LaunchedRun, startup
from bigbird_ja.launch.startup import Emulation
from bigbird_ja.launch.state import RunState
from tests.launch.support import wait_until, write_tool

HOSTILE = "a'b\"c $(touch /tmp/x) `id` ; rm -rf / # @@MODEL_DIR@@ \\ * ~ & | > <"


def run_of(**changes):
    run = LaunchedRun("gs://b", "run-1", package="gs://b/packages/0.zip", package_sha256="0")
    return replace(run, **changes)  # type: ignore[arg-type]


def fill(run, **vm):
    emulated = Emulation(**{"installs": False, **vm})  # type: ignore[arg-type]
    state = RunState(zone="z", attempt=1, machine_limit=3600.0)
    return startup.metadata(run, emulated, state)["startup-script"]


def test_hostile_values_stay_words():
    script = fill(run_of(bucket=HOSTILE, data_dir=HOSTILE))
    head = script.split("WORK_DIR=")[0]
    probe = f'{head}\nprintf "%s\\n" "$TERMS" "${{PRETRAIN_FLAGS[@]}}" "$PACKAGE"'
    out = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True).stdout
    first, _, data, *_, last = out.splitlines()
    assert json.loads(first)["model_dir"] == f"{HOSTILE}/run-1/model"
    assert (data, last) == (f"--data_dir={HOSTILE}", "gs://b/packages/0.zip")


def test_shellcheck_is_clean(tmp_path):
    path = tmp_path / "startup.sh"
    path.write_text(fill(run_of()), encoding="utf-8")
    # In a filled script constants meet constants; that is what a template is for.
    allowed = "--exclude=SC2050,SC2194,SC2157,SC2016"
    shellcheck = os.path.join(os.path.dirname(sys.executable), "shellcheck")  # of the lock
    done = subprocess.run([shellcheck, allowed, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package on a bucket: what a run knows of it."""
    packed, folder = startup.build_package(), tmp_path_factory.mktemp("bucket")
    run = startup.with_package(LaunchedRun(str(folder), "run-1"), packed)
    (folder / "packages").mkdir()
    Path(run.package).write_bytes(packed)
    return {"package": run.package, "package_sha256": run.package_sha256}


def start(root, script, *arguments, **environ):
    """The script as a machine boots it, with `root` as bucket."""
    for name in ("run-1/supervisor", "run-1/model", "vm", "bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "script").write_text(script, encoding="utf-8")
    variables = {
        "BIGBIRD_JA_VM_DIR": f"{root}/vm",
        "BIGBIRD_JA_VM_RUN_DIR": f"{root}/vm",
        "BIGBIRD_JA_UNIT_DIR": f"{root}/vm",
        "BIGBIRD_JA_DEVICE_DIR": f"{root}/dev",
        "TMPDIR": f"{root}/tmp",
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        **environ,
    }
    return subprocess.Popen(
        ["bash", root / "script", *arguments],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def calls(root):
    """What the stand-ins of tools have logged."""
    path = root / "calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_a_full_disk_at_boot_does_not_keep_the_watcher_from_starting(tmp_path):
    write_tool(f"{tmp_path}/bin/systemd-run", f'echo "${{@: -2:1}}" >>{tmp_path}/calls')
    script = fill(run_of(bucket=str(tmp_path)))
    assert start(tmp_path, script, BIGBIRD_JA_VM_DIR="/dev/full/vm").wait(120) != 0
    assert calls(tmp_path) == ["watch"]


def test_systemd_starts_the_watcher_before_and_training_after_installing(tmp_path, package):
    """With a `systemctl` that only logs how it is called."""
    write_tool(f"{tmp_path}/bin/systemctl", f'echo "$*" >>{tmp_path}/calls')
    write_tool(f"{tmp_path}/bin/systemd-run", f'echo "$1 $2 ${{@: -2:1}}" >>{tmp_path}/calls')
    script = fill(run_of(bucket=str(tmp_path), vm_python=sys.executable, **package))
    process = start(tmp_path, script)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert calls(tmp_path) == [
        "--quiet --unit=bigbird-ja-watch watch",
        "daemon-reload",
        "start --no-block bigbird-ja-train.service",
    ]
    unit = (tmp_path / "vm/bigbird-ja-train.service").read_text(encoding="utf-8")
    assert "KillMode=mixed" in unit  # SIGTERM goes to the script, which passes it on
    assert f"ExecStart=/bin/bash {tmp_path}/vm/startup.sh train" in unit
    assert (tmp_path / "vm/startup.sh").read_text(encoding="utf-8") == script
    assert (tmp_path / "vm").stat().st_mode & 0o777 == 0o700  # other users of the machine
    assert (tmp_path / "vm/package/bigbird_ja/accelerators/prices.yaml").exists()


def test_an_image_without_pip_gets_it_from_its_distribution(tmp_path, package):
    """With stand-ins for Python's pip and for apt-get, which log how they are called."""
    python = f"{tmp_path}/bin/python3"
    write_tool(
        python,
        f'case "$*" in\n*"-m pip --version") test -e {tmp_path}/calls ;;\n'
        f'*"-m pip"*) echo "pip ${{*: -1}}" >>{tmp_path}/calls; exit 1 ;;\n'
        f'*) exec {sys.executable} "$@" ;;\nesac',
    )
    write_tool(f"{tmp_path}/bin/apt-get", f'echo "apt ${{*: -1}}" >>{tmp_path}/calls')
    script = fill(run_of(vm_python=python, **package), installs=True)
    assert start(tmp_path, script, "install").wait(120) != 0  # this pip installs no uv
    lock = f"{tmp_path}/vm/package/bigbird_ja/launch/locks/uv.lock"
    assert calls(tmp_path) == ["apt update", "apt python3-pip", f"pip {lock}"]


def training(root, hosts, trainer, reporter, others="", **environ):
    """The script where it trains, with a Python that runs one line of bash for the trainer, and
    another for what reports the end."""
    python = f"{root}/bin/python3"
    write_tool(python, f'case "$*" in\n*pretrain*) {trainer} ;;\n{others}*) {reporter} ;;\nesac')
    script = fill(run_of(vm_python=python, accelerator_type="v4-16" if hosts > 1 else "v4-8"))
    return start(root, script, "train", **environ)


FITS = {"BASH_FUNC_ulimit%%": "() { :; }"}
NO_MEMORY = FITS | {"BASH_FUNC_ulimit%%": "() { return 1; }"}


@pytest.mark.skipif(os.geteuid() != 0, reason="a machine's script is run by root")
@pytest.mark.parametrize(
    ("devices", "machine", "user"),
    [
        ("accel0 accel1", NO_MEMORY, 65534),
        ("vfio/0 vfio/vfio", FITS, 65534),
        ("vfio/0 vfio/vfio", NO_MEMORY, 0),
        ("accel0", {"TENSORFLOW": "1"}, 0),  # lies where only root finds it
        ("", FITS, 0),
    ],
)
def test_the_trainer_is_a_user_of_its_own_where_the_devices_can_be_its(devices, machine, user):
    """With real owners; of the tools, `useradd` and `id` stand in for an account."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o711)
        files = ["seen", "tmp/libtpu_lockfile", *(f"dev/{device}" for device in devices.split())]
        for path in map(root.joinpath, files):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
        (root / "seen").chmod(0o666)
        write_tool(f"{root}/bin/useradd", f'echo "$*" >>{root}/calls')
        write_tool(f"{root}/bin/id", f"test -e {root}/calls && echo 65534")
        opened = "".join(f"; echo >>{root}/{device} && echo opens" for device in files[2:])
        trainer = f"""(echo $EUID; kill -0 $PPID && echo kills{opened}
            echo x >{root}/vm/startup.sh && echo writes) >{root}/seen 2>/dev/null"""
        image = "*importlib*) exit ${TENSORFLOW-0} ;;\n"
        assert training(root, 1, trainer, "true", image, **machine).wait(60) == 0
        seen, log = ((root / name).read_text("utf-8") for name in ("seen", "vm/training.log"))
        assert ("as root" in log) == (not user)
        opens = ["opens" for _ in files[2:]]
        assert seen.split() == ([str(user), *opens] if user else ["0", "kills", *opens, "writes"])
        assert (root / "tmp/libtpu_lockfile").exists() == (not user)
        assert not user or (root / "vm").stat().st_mode & 0o777 == 0o710


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_terminated_host_of_a_slice_reports_no_end(tmp_path, hosts):
    """SIGTERM so early that the trainer has no handler yet: its status is 143, not 75."""
    trainer = f"touch {tmp_path}/trains; exec sleep 60"
    process = training(tmp_path, hosts, trainer, f'echo "${{@: -1}}" >>{tmp_path}/calls')
    wait_until(lambda: (tmp_path / "trains").exists())
    process.terminate()
    assert process.wait(timeout=30) == 0
    assert calls(tmp_path) == (["143"] if hosts == 1 else [])
    assert (tmp_path / "vm/ended").exists() == (hosts == 1)


def test_a_host_that_is_terminated_while_it_waits_for_another_trains_no_more(tmp_path):
    process = training(tmp_path, 2, f"echo trains >>{tmp_path}/calls; exit 75", "exit 1")
    assert process.stderr is not None
    while "waiting for its successor" not in process.stderr.readline():
        assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=30) == 0
    assert calls(tmp_path) == ["trains"]
    assert not (tmp_path / "vm/ended").exists()


def test_a_package_that_was_changed_is_not_installed(tmp_path, package):
    changed = {**package, "package_sha256": "0" * 64}
    run = run_of(bucket=str(tmp_path), vm_python=sys.executable, **changed)
    process = start(tmp_path, fill(run, service_manager="none"))
    report, log = (tmp_path / f"run-1/supervisor/{name}" for name in ("exit.json", "training.log"))
    try:
        wait_until(report.exists)
        assert process.poll() is None  # the watcher stays
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "vm/package").exists()
    assert '"attempt": 1, "status": 1' in report.read_text(encoding="utf-8")
    lines = log.read_text(encoding="utf-8")
    assert "installation failed" in lines and "FAILED" in lines  # sha256sum's word too
