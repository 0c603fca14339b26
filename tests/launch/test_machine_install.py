"""The lock of a rented machine is executed: the script that `launch` sends installs it and trains,
on one host, preempted and resumed, and on two."""

import contextlib
import json
import re
from dataclasses import replace

import pytest

from bigbird_ja import storage
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.launch import LaunchedRun, startup
from bigbird_ja.launch.state import RunState
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.settings.resolve import fit_to_data, resolve_config
from testkit import killing, pods, rented
from testkit.fakes.tpu import FakeTpu
from tests.launch.support import wait_until

pytestmark = pytest.mark.timeout(2000)

STEPS, FIRST = 300, 20
PATIENCE = 600.0  # for Python, TensorFlow and the compiler to start, on a machine with other work


@pytest.fixture(scope="module")
def cpython(tmp_path_factory):
    return rented.archive_python(tmp_path_factory.mktemp("cpython"))


@pytest.fixture(scope="module")
def metadata_server(tmp_path_factory):
    with FakeTpu(str(tmp_path_factory.mktemp("service"))) as service:
        yield service.url


@pytest.fixture(scope="module")
def place(tmp_path_factory, fake_gcs):
    """A bucket with a data set; this process finds it too."""
    config, data = killing.write_inputs(tmp_path_factory.mktemp("inputs"))
    fake_gcs.create_bucket("rented")
    for path in data.iterdir():
        fake_gcs.put(f"gs://rented/data/{path.name}", path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("notes")))
        for key, text in fake_gcs.env.items():
            if key.startswith(("STORAGE_", "BIGBIRD_")):
                patch.setenv(key, text)
        yield str(config)


@pytest.fixture(scope="module")
def launched(place, fake_gcs, metadata_server):
    """`launched(name, accelerator_type)`: the run and script that `launch` stores and sends."""

    def launched(name, accelerator_type, steps=STEPS, **more):
        sets = [f"training.num_train_steps={steps}", "checkpoints.save_every_steps=20"]
        config, overrides = resolve_config(place, sets)
        data = manifest_lib.load("gs://rented/data")
        run = LaunchedRun("gs://rented", name, f"id-{name}", "p", "gs://rented/data")
        run = replace(
            run, accelerator_type=accelerator_type, **{"vm_python": rented.python(), **more}
        )
        run = startup.store(run, fit_to_data(config, data, overrides, "d"), data, False)
        vm = rented.emulation(metadata_server, fake_gcs.url)
        state = RunState(zone="z", attempt=1, machine_limit=7200.0)
        return run, startup.metadata(run, vm, state)["startup-script"]

    return launched


@pytest.fixture(scope="module")
def machine_of(tmp_path_factory, cpython):
    """`machine_of(script, ...)`: a machine; what it runs is killed at the end."""
    with contextlib.ExitStack() as stack:

        def machine_of(script, installed=None, cpython=cpython, packages=None):
            root = tmp_path_factory.mktemp("vm")
            machine = rented.Machine(root, script, cpython, installed, packages)
            stack.callback(machine.close)
            return machine

        yield machine_of


@pytest.fixture(scope="module")
def installed(launched, machine_of):
    """A run, and a machine on which the script has installed everything for it."""
    run, script = launched("one-host", "v5e-8")
    machine = machine_of(script)
    done = machine.install()
    if done.returncode and re.search("onnection|dns error|sending request", done.stderr):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return run, machine


def test_a_wrong_checksum_ends_the_installation(launched, machine_of, cpython):
    """That of the CPython; packages are installed by uv with --require-hashes."""
    listed = json.loads(cpython.read_text(encoding="utf-8"))
    (entry,) = listed.values()
    wrong = cpython.parent / "wrong.json"
    entry["sha256"] = "0" * 64
    wrong.write_text(json.dumps(listed), encoding="utf-8")
    machine = machine_of(launched("wrong-checksum", "v5e-8")[1], cpython=wrong)
    done = machine.install()
    assert done.returncode != 0 and "ash mismatch" in done.stderr, done.stderr
    assert not (machine.disk / "package/.sha256").exists()


def steps(run):
    return CheckpointStore(run.model_dir).steps()


def has_reported(run, status):
    """Whether the machine has told the supervisor that training ended so."""
    path = run.supervisor("exit.json")
    return storage.exists(path) and json.loads(storage.read_bytes(path))["status"] == status


def test_a_machine_installs_trains_is_preempted_and_finishes(
    installed, place, zygote, fake_gcs, tmp_path
):
    """With the weights of a run that was left alone."""
    run, machine = installed
    machine.boot(**fake_gcs.env, **pods.environ(1))
    wait_until(lambda: steps(run) or machine.has_ended(), PATIENCE)
    assert not machine.has_ended(), machine.log()
    assert machine.terminate() == 0
    assert has_reported(run, 75), machine.log()
    assert FIRST <= steps(run)[-1] < STEPS
    machine.boot(**fake_gcs.env, **pods.environ(1))
    wait_until(machine.has_ended, PATIENCE)
    wait_until(lambda: has_reported(run, 0), PATIENCE)
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


def test_two_hosts_train_as_one(installed, launched, machine_of, fake_gcs):
    run, script = launched("two-hosts", "v4-16", steps=FIRST)
    hosts = [machine_of(script, installed[1]) for _ in range(2)]
    address = pods.free_address()
    for index, host in enumerate(hosts):
        host.boot(**fake_gcs.env, **pods.place(address, 2, index))
    wait_until(lambda: all(host.has_ended() for host in hosts), PATIENCE)
    wait_until(lambda: has_reported(run, 0), PATIENCE)
    assert steps(run)[-1] == FIRST, [host.log() for host in hosts]
    assert run_log.read_events(run.model_dir)[0]["processes"] == 2


@pytest.mark.nightly
def test_the_estimator_trains_with_the_tensorflow_and_python_of_its_image(
    launched, machine_of, tmp_path, fake_gcs
):
    """On Python 3.10, whose packages stay as they are; the lock's lie over them."""
    python = rented.python("3.10")
    if python is None:
        pytest.skip("no Python 3.10 with pip stands for the image's")
    image = rented.install(tmp_path / "image", python, "tensorflow==2.15.1", "protobuf==3.20.3")
    before = rented.listing(image)
    run, script = launched("estimator", "v3-8", vm_python=python)
    assert "--engine" not in script.partition("PRETRAIN_FLAGS=")[2].splitlines()[0]
    machine = machine_of(script, packages=image)
    done = machine.install()
    assert done.returncode == 0, done.stderr
    machine.boot(**fake_gcs.env)
    wait_until(machine.has_ended, PATIENCE)
    wait_until(lambda: has_reported(run, 0), PATIENCE)
    assert "engine: estimator" in machine.log()
    assert steps(run)[-1] == STEPS
    assert rented.listing(image) == before
