"""Dependencies and locks are consistent. The tests install nothing."""

import functools
import itertools
import json
import os
import re
import shutil
import sys
import tarfile
import urllib.parse
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bigbird_ja.accelerators import environment
from testkit import ROOT, command_line

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The supported versions of Python. .ci/run tests each of them.
PYTHONS = ("3.11", "3.12", "3.13")
COMMON = ("huggingface",)
# Each lock file, with the extras and the versions of Python for which it pins packages.
LOCKS = {
    "requirements/main.lock": (("cpu", "dev", *COMMON), PYTHONS),
    "requirements/estimator.lock": (("estimator", "test", *COMMON), ("3.11",)),
    "requirements/kaggle.lock": (("test", *COMMON), ("3.12",)),
}
OVER = "requirements/extra.lock"  # This lock is installed after main.lock.
# Folder of the lock files for rented machines. Its file image.lock pins the packages that a machine
# image with TensorFlow 2.15 lacks.
MACHINES = "bigbird_ja/launch/locks"
IMAGES = ROOT / "tests" / "fixtures" / "images"
LEAVE_ALONE = re.compile(r"tensorflow([-_](cpu|gpu|tpu|intel|macos))?$|jax(lib)?$|libtpu$|keras$")


def blocks(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    return re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"(?m)^#.*\n", "", text).strip())


def on_linux(python):
    """Return the values of environment markers on Linux for a version of Python."""
    system = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    kind = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return {"python_version": python, "python_full_version": f"{python}.1", **system, **kind}


def pins(lock, python):
    """Return the version of each package in a lock, on Linux with the given version of Python."""
    here, versions = on_linux(python), {}
    for block in blocks(lock):
        required = Requirement(block.partition("\n")[0].rstrip(" \\"))
        if required.marker is None or required.marker.evaluate(here):
            assert canonicalize_name(required.name) not in versions, f"{required.name} twice"
            (pin,) = required.specifier
            versions[canonicalize_name(required.name)] = pin.version
    return versions


def requirements(*extras):
    """Return the requirements of the package and of its extras, including nested extras."""
    optional = PROJECT["optional-dependencies"]
    collected = []
    for text in itertools.chain(PROJECT["dependencies"], *(optional[extra] for extra in extras)):
        required = Requirement(text)
        if required.name == PROJECT["name"]:
            collected += requirements(*required.extras)
        else:
            collected.append(required)
    return collected


@pytest.fixture
def uv():
    """Return a function that runs uv with the given arguments. Skip the test if uv is missing."""
    path = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        pytest.skip("uv is not installed here")
    return functools.partial(command_line.run, path)


@pytest.mark.parametrize(
    "lock", [*LOCKS, OVER, *(f"{MACHINES}/{name}.lock" for name in ("uv", "machine", "image"))]
)
def test_locks_pin_by_hash_and_name_no_registry(lock):
    for block in blocks(lock):
        first, *hashes = [line.strip(" \\") for line in block.splitlines()]
        assert re.match(r"[\w.\[\],-]+==[\w.]+( ; [\w. '<>=!()*-]+)?$", first), first
        assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", h) for h in hashes), first


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_have_the_requirements_of_the_package(lock):
    extras, pythons = LOCKS[lock]
    for python in pythons:
        locked = pins(lock, python)
        for required in requirements(*extras):
            if required.marker and not required.marker.evaluate(on_linux(python)):
                continue
            version = locked.get(canonicalize_name(required.name))
            assert version, f"{lock}: no {required.name}; `make locks`"
            assert required.specifier.contains(version, prereleases=True), (required, version)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_extra_lock_replaces_nothing_of_the_main_one(python):
    main, over = pins("requirements/main.lock", python), pins(OVER, python)
    assert not set(main) & set(over)
    for required in requirements("all-tests"):
        name = canonicalize_name(required.name)
        assert required.specifier.contains({**main, **over}[name]), required


def test_a_plain_install_keeps_tensorflow_jax_libtpu_and_numpy():
    clients = {"google-cloud-tpu", "google-cloud-compute", "grpcio", "grpcio-status", "protobuf"}
    for required in requirements():
        assert not LEAVE_ALONE.match(required.name) and required.name not in clients, required
        capped = [s for s in required.specifier if s.operator not in (">=", "!=")]
        assert not capped, f"{required}: could replace a package of the machine"


def test_the_promised_pythons_are_the_same_everywhere():
    kinds = PROJECT["classifiers"]
    named = [kind.rpartition(" ")[2] for kind in kinds if re.search(r":: 3\.\d+$", kind)]
    assert tuple(named) == PYTHONS
    minors = [int(python.partition(".")[2]) for python in PYTHONS]
    assert PROJECT["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    for page in ("README.md", "README.ja.md", "docs/install.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        wanted = {f"3.{minor}" for minor in minors}
        # Skip the lines about TPUEstimator, since they also name the Python version of an image.
        promised = re.sub(r"(?m)^.*TPUEstimator.*$", "", text)
        assert wanted == {*re.findall(r"\b3\.1\d\b", promised)}, page
    for lock, (_, pythons) in LOCKS.items():
        name = Path(lock).stem
        for python in (*PYTHONS, "3.10", "3.14"):
            done = command_line.run(ROOT / "scripts/make_venv.sh", f"{name}-{python}")
            is_refused = "is not for Python" in done.stderr
            assert is_refused == (python not in pythons), (name, python, done.stderr)
    ran = (ROOT / ".ci/run").read_text("utf-8")
    assert {*re.findall(r"\btest-python-(\S+)", ran)} == {*PYTHONS[1:]}


def test_every_python_gets_one_tensorflow_jax_and_libtpu():
    for python in PYTHONS:
        locked = {**pins("requirements/main.lock", python), **pins(OVER, python)}
        assert environment.PACKAGES.items() <= locked.items()
        assert pins(f"{MACHINES}/machine.lock", python).items() <= locked.items()
        assert pins(f"{MACHINES}/uv.lock", python).items() <= locked.items()
    for required in requirements("cpu", "tpu", "gpu", "preflight"):
        if LEAVE_ALONE.match(required.name):
            name = "tensorflow-cpu" if required.name == "tensorflow" else required.name
            version = environment.PACKAGES[name]
            major, minor, *_ = version.split(".")
            assert required.specifier.contains(version), required
            assert not required.specifier.contains(f"{major}.{int(minor) + 1}.0"), required


def test_uv_lists_the_cpython_of_a_machine(uv, tmp_path):
    """Compare version, address and checksum of a rented machine's CPython with those in uv."""
    (listed,) = json.loads((ROOT / MACHINES / "cpython.json").read_text("utf-8")).values()
    version = f"3.{listed['minor']}.{listed['patch']}"
    assert f"3.{listed['minor']}" == PYTHONS[0]
    lock = (ROOT / MACHINES / "uv.lock").read_text("utf-8")
    assert f"uv=={uv('--version').stdout.split()[1]} " in lock
    name = urllib.parse.unquote(listed["url"].partition("/releases/download/")[2])
    (tmp_path / name).parent.mkdir()
    (tmp_path / "python").write_text("another")
    with tarfile.open(tmp_path / name, "w:gz") as archive:
        archive.add(tmp_path / "python", "python/bin/python3")
    environ = {"UV_PYTHON_INSTALL_MIRROR": tmp_path.as_uri(), "UV_CACHE_DIR": str(tmp_path / "c")}
    words = ("python", "install", version, "--no-bin", "--install-dir", tmp_path / "pythons")
    done = uv(*words, env=environ)
    assert done.status != 0
    assert re.search(r"Expected:\s*(\w+)", done.stderr)[1] == listed["sha256"], done.stderr


@pytest.mark.parametrize("image", ["kaggle-tpu.txt", "colab-tpu.txt"])
def test_it_installs_with_the_packages_of_free_tpu_images(image, uv, tmp_path):
    """Resolve the requirements with the versions of packages in the TPU image of Kaggle or Colab.

    The notebooks install with the same versions as constraints.
    """
    frozen = (IMAGES / image).read_text(encoding="utf-8")
    python = re.search(r"# Python (\S+)", frozen)
    wanted = tmp_path / "wanted.in"
    names = [str(required) for required in requirements("huggingface")] + ["jax", "libtpu"]
    wanted.write_text("\n".join([*names, "tensorflow-cpu"]), encoding="utf-8")
    where = ("--python-version", python[1], "--python-platform", "x86_64-manylinux_2_31")
    how = ("--constraint", IMAGES / image, "--quiet", "--no-header", *where)
    done = uv("pip", "compile", wanted, *how)
    if "request" in done.stderr and "No solution" not in done.stderr:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.status == 0, done.stderr
    lines = [line.split("==") for line in frozen.splitlines() if "==" in line]
    pinned = {canonicalize_name(name): version for name, version in lines}
    for name, version in re.findall(r"(?m)^([\w.-]+)==(\S+)", done.stdout):
        pin = pinned.get(canonicalize_name(name), version)
        assert pin == version, f"{name} {version} replaces the image's"
