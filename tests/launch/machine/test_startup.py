"""The startup script: quoting of values, shellcheck, its services, and a whole installation."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.launch import package as package_module
from bigbird_ja.launch import session
from bigbird_ja.launch.backends import Vm
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine import startup
from bigbird_ja.launch.state import RunState
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.settings.resolve import fit_to_data
from testkit import killing, pods, rented
from testkit.configs import resolve_config
from testkit.fakes.tpu import FakeTpu
from tests.launch.support import wait_until, write_tool

HOSTILE = "a'b\"c $(touch /tmp/x) `id` ; rm -rf / # @@MODEL_DIR@@ \\ * ~ & | > <"


def run_of(**changes):
    run = LaunchedRun("gs://b", "run-1", package="gs://b/packages/0.zip", package_sha256="0")
    return replace(run, **changes)  # type: ignore[arg-type]


def fill(run, **vm):
    emulated = Vm(**{"installs": False, **vm})  # type: ignore[arg-type]
    state = RunState(zone="z", attempt=1, machine_limit=3600.0)
    return startup.make_metadata(run, emulated, state)["startup-script"]


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
    # These rules report comparisons of constants, which a script from a template contains.
    allowed = "--exclude=SC2050,SC2194,SC2157,SC2016"
    # The virtual environment contains the locked version of shellcheck.
    shellcheck = os.path.join(os.path.dirname(sys.executable), "shellcheck")
    done = subprocess.run([shellcheck, allowed, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Store the package in a folder that takes the place of a bucket.

    Returns:
        Fields of a `LaunchedRun` that name the package.
    """
    packed, folder = package_module.build(), tmp_path_factory.mktemp("bucket")
    run = package_module.note(LaunchedRun(str(folder), "run-1"), packed)
    (folder / "packages").mkdir()
    Path(run.package).write_bytes(packed)
    return {"package": run.package, "package_sha256": run.package_sha256}


def start(root, script, *arguments, **environ):
    """Start the script as at the boot of a machine, with the folder `root` as bucket."""
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
    """Return the calls that fake tools have logged."""
    path = root / "calls"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_a_full_disk_at_boot_does_not_keep_the_watcher_from_starting(tmp_path):
    write_tool(f"{tmp_path}/bin/systemd-run", f'echo "${{@: -2:1}}" >>{tmp_path}/calls')
    script = fill(run_of(bucket=str(tmp_path)))
    assert start(tmp_path, script, BIGBIRD_JA_VM_DIR="/dev/full/vm").wait(120) != 0
    assert calls(tmp_path) == ["watch"]


def test_systemd_starts_the_watcher_before_and_training_after_installing(tmp_path, package):
    """Use a fake `systemctl` and a fake `systemd-run`, which only log their calls."""
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
    assert "KillMode=mixed" in unit  # Only the script gets SIGTERM, and forwards it.
    assert f"ExecStart=/bin/bash {tmp_path}/vm/startup.sh train" in unit
    assert (tmp_path / "vm/startup.sh").read_text(encoding="utf-8") == script
    # Other users of the machine cannot read the folder.
    assert (tmp_path / "vm").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "vm/package/bigbird_ja/accelerators/prices.yaml").exists()


def test_an_image_without_pip_gets_it_from_its_distribution(tmp_path, package):
    """Use a fake pip and a fake apt-get, which log their calls."""
    python = f"{tmp_path}/bin/python3"
    write_tool(
        python,
        f'case "$*" in\n*"-m pip --version") test -e {tmp_path}/calls ;;\n'
        f'*"-m pip"*) echo "pip ${{*: -1}}" >>{tmp_path}/calls; exit 1 ;;\n'
        f'*) exec {sys.executable} "$@" ;;\nesac',
    )
    write_tool(f"{tmp_path}/bin/apt-get", f'echo "apt ${{*: -1}}" >>{tmp_path}/calls')
    script = fill(run_of(vm_python=python, **package), installs=True)
    assert start(tmp_path, script, "install").wait(120) != 0  # The fake pip fails to install uv.
    lock = f"{tmp_path}/vm/package/bigbird_ja/launch/locks/uv.lock"
    assert calls(tmp_path) == ["apt update", "apt python3-pip", f"pip {lock}"]


def training(root, hosts, trainer, reporter, others="", **environ):
    """Start the training part of the script with a fake Python.

    Args:
        root: folder that takes the place of the bucket and the disk.
        hosts: number of hosts of the slice.
        trainer: line of bash that the fake Python runs in place of `pretrain`.
        reporter: line of bash that the fake Python runs in place of the program that reports the
            trainer's end.
        others: further branches of the `case` statement in the fake Python.
        environ: additional environment variables.
    """
    python = f"{root}/bin/python3"
    write_tool(python, f'case "$*" in\n*pretrain*) {trainer} ;;\n{others}*) {reporter} ;;\nesac')
    script = fill(run_of(vm_python=python, accelerator_type="v4-16" if hosts > 1 else "v4-8"))
    return start(root, script, "train", **environ)


FITS = {"BASH_FUNC_ulimit%%": "() { :; }"}
NO_MEMORY = FITS | {"BASH_FUNC_ulimit%%": "() { return 1; }"}


@pytest.mark.skipif(os.geteuid() != 0, reason="a machine's script is run by root")
@pytest.mark.parametrize(
    # Device files, variables of the script, and the expected user id of the trainer (0 is root).
    ("devices", "machine", "user"),
    [
        ("accel0 accel1", NO_MEMORY, 65534),
        ("vfio/0 vfio/vfio", FITS, 65534),
        ("vfio/0 vfio/vfio", NO_MEMORY, 0),
        ("accel0", {"TENSORFLOW": "1"}, 0),  # Only root can import the image's TensorFlow.
        ("", FITS, 0),
    ],
)
def test_the_trainer_has_its_own_user_if_that_user_can_own_the_devices(devices, machine, user):
    """Use real owners of files. Only the programs `useradd` and `id` are fake."""
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
        trainer = f"""(echo $EUID $(grep -c "NoNewPrivs:.1" /proc/self/status)
            kill -0 $PPID && echo kills{opened}
            echo x >{root}/vm/startup.sh && echo writes) >{root}/seen 2>/dev/null"""
        image = "*importlib*) exit ${TENSORFLOW-0} ;;\n"
        assert training(root, 1, trainer, "true", image, **machine).wait(60) == 0
        seen, log = ((root / name).read_text("utf-8") for name in ("seen", "vm/training.log"))
        assert ("as root" in log) == (not user)
        opens = ["opens" for _ in files[2:]]
        effective, new_privileges_off, *rest = seen.split()
        assert (effective, rest) == (str(user), opens if user else ["kills", *opens, "writes"])
        assert not user or new_privileges_off == "1"
        assert (root / "tmp/libtpu_lockfile").exists() == (not user)
        assert not user or (root / "vm").stat().st_mode & 0o777 == 0o710


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_terminated_host_of_a_slice_reports_no_end(tmp_path, hosts):
    """Send SIGTERM to a trainer without a signal handler, which ends with status 143, not 75."""
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
    while "waiting for its replacement" not in (line := process.stderr.readline()):
        assert line, "the script closed its log"
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
        assert process.poll() is None  # The watcher still runs.
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "vm/package").exists()
    assert '"attempt": 1, "status": 1' in report.read_text(encoding="utf-8")
    lines = log.read_text(encoding="utf-8")
    assert "installation failed" in lines and "FAILED" in lines  # sha256sum prints FAILED.


# --- runs with all packages of the lock: install, train, preempt, resume ------------------------


STEPS, FIRST = 300, 20
# Seconds in which Python, TensorFlow and the compiler start, even on a busy machine.
TIMEOUT = 600.0


@pytest.fixture(scope="module")
def cpython(tmp_path_factory):
    return rented.archive_python(tmp_path_factory.mktemp("cpython"))


@pytest.fixture(scope="module")
def metadata_server(tmp_path_factory):
    with FakeTpu(str(tmp_path_factory.mktemp("service"))) as service:
        yield service.url


@pytest.fixture(scope="module")
def place(tmp_path_factory, fake_gcs):
    """Create a bucket with a data set, and return the path of a config.

    The process that runs the tests can access the bucket.
    """
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    fake_gcs.create_bucket("rented")
    for path in data.iterdir():
        fake_gcs.put(f"gs://rented/data/{path.name}", path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        # uv's cache contains gigabytes, so keep it for the next test run.
        patch.setenv("UV_CACHE_DIR", rented.uv_cache())
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("notes")))
        for key, text in fake_gcs.env.items():
            if key.startswith(("STORAGE_", "BIGBIRD_")):
                patch.setenv(key, text)
        yield str(config)


@pytest.fixture(scope="module")
def launched(place, fake_gcs, metadata_server):
    """Return a function that creates a run with a name and an accelerator type.

    The function returns the `LaunchedRun` and the startup script that `launch` would create.
    """

    def launched(name, accelerator_type, steps=STEPS, **more):
        sets = [f"training.num_train_steps={steps}", "checkpoints.save_every_steps=20"]
        config, overrides = resolve_config(place, sets)
        data = manifest_lib.load("gs://rented/data")
        run = LaunchedRun("gs://rented", name, f"id-{name}", "p", "gs://rented/data")
        run = replace(
            run, accelerator_type=accelerator_type, **{"vm_python": rented.python(), **more}
        )
        run = session.store(run, fit_to_data(config, data, overrides, "d"), data)
        vm = rented.make_vm(metadata_server, fake_gcs.url)
        state = RunState(zone="z", attempt=1, machine_limit=7200.0)
        return run, startup.make_metadata(run, vm, state)["startup-script"]

    return launched


@pytest.fixture(scope="module")
def find_machine(tmp_path_factory, cpython):
    """Return a function that creates a simulated machine with a startup script.

    All processes of the machines are killed after the tests.
    """
    with contextlib.ExitStack() as stack:

        def find_machine(script, installed=None, cpython=cpython, packages=None):
            root = tmp_path_factory.mktemp("vm")
            machine = rented.Machine(root, script, cpython, installed, packages)
            stack.callback(machine.close)
            return machine

        yield find_machine


@pytest.fixture(scope="module")
def installed(launched, find_machine):
    """Return a run, and a machine on which the run's startup script has installed all packages."""
    run, script = launched("one-host", "v5e-8")
    machine = find_machine(script)
    done = machine.install()
    if done.returncode and re.search("onnection|dns error|sending request", done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return run, machine


@pytest.mark.timeout(2000)
def test_a_wrong_checksum_ends_the_installation(launched, find_machine, cpython):
    """Change the checksum of CPython. --require-hashes makes uv verify those of the packages."""
    listed = json.loads(cpython.read_text(encoding="utf-8"))
    (entry,) = listed.values()
    wrong = cpython.parent / "wrong.json"
    entry["sha256"] = "0" * 64
    wrong.write_text(json.dumps(listed), encoding="utf-8")
    machine = find_machine(launched("wrong-checksum", "v5e-8")[1], cpython=wrong)
    done = machine.install()
    assert done.returncode != 0 and "ash mismatch" in done.stderr, done.stderr
    assert not (machine.disk / "package/.sha256").exists()


def steps(run):
    return CheckpointStore(run.model_dir).list_steps()


def has_reported(run, status):
    """Return whether the machine has reported this exit status."""
    path = run.supervisor("exit.json")
    return storage.exists(path) and json.loads(storage.read_bytes(path))["status"] == status


@pytest.mark.timeout(2000)
def test_a_machine_installs_trains_is_preempted_and_finishes(
    installed, place, zygote, fake_gcs, tmp_path
):
    """Compare the weights with those of an uninterrupted run."""
    run, machine = installed
    machine.boot(**fake_gcs.env, **pods.environ(1))
    wait_until(lambda: steps(run) or machine.has_ended(), TIMEOUT)
    assert not machine.has_ended(), machine.log()
    assert machine.terminate() == 0
    assert has_reported(run, 75), machine.log()
    assert FIRST <= steps(run)[-1] < STEPS
    machine.boot(**fake_gcs.env, **pods.environ(1))
    wait_until(machine.has_ended, TIMEOUT)
    wait_until(lambda: has_reported(run, 0), TIMEOUT)
    assert steps(run)[-1] == STEPS
    lines = [line["step"] for line in run_log.read_metrics(run.model_dir)]
    assert lines == sorted({*lines}) and lines[-1] == STEPS
    kinds = [event["event"] for event in run_log.read_events(run.model_dir)]
    ends = ["started", "interrupted", "resumed", "finished"]
    assert [kind for kind in kinds if kind != "saved"] == ends
    flags = [f"--config={place}", "--data_dir=gs://rented/data", f"--model_dir={tmp_path}/alone"]
    flags += [f"--num_train_steps={STEPS}", "--set=checkpoints.save_every_steps=20"]
    ended = zygote.run("pretrain", *flags, "--engine=pjrt", environ=pods.environ(1))
    assert ended.status == 0, ended.err
    assert killing.digest(run.model_dir) == killing.digest(f"{tmp_path}/alone")


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_two_hosts_train_as_one(installed, launched, find_machine, fake_gcs):
    run, script = launched("two-hosts", "v4-16", steps=FIRST)
    hosts = [find_machine(script, installed[1]) for _ in range(2)]
    address = pods.free_address()
    for index, host in enumerate(hosts):
        host.boot(**fake_gcs.env, **pods.place(address, 2, index))
    wait_until(lambda: all(host.has_ended() for host in hosts), TIMEOUT)
    wait_until(lambda: has_reported(run, 0), TIMEOUT)
    assert steps(run)[-1] == FIRST, [host.log() for host in hosts]
    assert run_log.read_events(run.model_dir)[0]["processes"] == 2


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_the_estimator_trains_with_the_tensorflow_and_python_of_its_image(
    launched, find_machine, tmp_path, fake_gcs
):
    """Install the packages next to those of the image's Python 3.10, which do not change."""
    python = rented.python("3.10")
    if python is None:
        pytest.skip("no Python 3.10 with pip stands for the image's")
    image = rented.install(tmp_path / "image", python, "tensorflow==2.15.1", "protobuf==3.20.3")
    before = rented.listing(image)
    run, script = launched("estimator", "v3-8", vm_python=python)
    assert "--engine" not in script.partition("PRETRAIN_FLAGS=")[2].splitlines()[0]
    machine = find_machine(script, packages=image)
    done = machine.install()
    assert done.returncode == 0, done.stderr
    machine.boot(**fake_gcs.env)
    wait_until(machine.has_ended, TIMEOUT)
    wait_until(lambda: has_reported(run, 0), TIMEOUT)
    assert "engine: estimator" in machine.log()
    assert steps(run)[-1] == STEPS
    assert rented.listing(image) == before
