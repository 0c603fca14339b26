"""Dependencies, locks and virtual environments, without installing anything."""

import itertools
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from testkit import ROOT, command_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Lock -> the extras that it holds, and the Pythons that it is for.
COMMON = ("huggingface",)
LOCKS = {
    "requirements/main.lock": (("cpu", "dev", *COMMON), ("3.11", "3.12", "3.13")),
    "requirements/estimator.lock": (("estimator", "test", *COMMON), ("3.10", "3.11")),
    "requirements/kaggle.lock": (("tpu", "test", *COMMON), ("3.12", "3.13")),
}
OVER = "requirements/extra.lock"  # laid over the first
# What `launch` installs on a machine, and the Pythons of its images.
MACHINES = "bigbird_ja/launch/locks"
IMAGES_PYTHONS = {"tf-2.15": ("3.10", "3.11"), "newer": ("3.10", "3.11", "3.12", "3.13")}
IMAGES = ROOT / "tests" / "fixtures" / "images"
# Of the package's requirements, what a TPU VM's image has, or what training does without.
NOT_BESIDE = {"tensorflow", "tensorflow-metadata"}  # the image's own, or of its TensorFlow alone
NOT_FOR_TRAINING = {"google-auth", "matplotlib", "numpy", "requests", "tensorflow-datasets"}
LEAVE_ALONE = re.compile(r"tensorflow([-_](cpu|gpu|tpu|intel|macos))?$|jax(lib)?$|libtpu$|keras$")


def blocks(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    return re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"(?m)^#.*\n", "", text).strip())


def on_linux(python):
    """The environment that markers of requirements ask about."""
    system = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    kind = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return {"python_version": python, "python_full_version": f"{python}.1", **system, **kind}


def pins(lock, python):
    """Package -> version on Linux with that Python."""
    here, versions = on_linux(python), {}
    for block in blocks(lock):
        required = Requirement(block.partition("\n")[0].rstrip(" \\"))
        if required.marker is None or required.marker.evaluate(here):
            assert canonicalize_name(required.name) not in versions, f"{required.name} twice"
            (pin,) = required.specifier
            versions[canonicalize_name(required.name)] = pin.version
    return versions


def requirements(*extras):
    """The package's own requirements and the extras', those in extras of extras included."""
    optional = PROJECT["optional-dependencies"]
    collected = []
    for text in itertools.chain(PROJECT["dependencies"], *(optional[extra] for extra in extras)):
        required = Requirement(text)
        if required.name == PROJECT["name"]:
            collected += requirements(*required.extras)
        else:
            collected.append(required)
    return collected


def with_index(*words):
    """`uv` where it is and reaches a package index; skips elsewhere."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed here")
    done = command_line.run(uv, *words)
    if "request" in done.stderr and "No solution" not in done.stderr:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")
    return done


@pytest.mark.parametrize(
    "lock", [*LOCKS, OVER, *(f"{MACHINES}/{name}.lock" for name in ("needed", *IMAGES_PYTHONS))]
)
def test_locks_pin_by_hash_and_name_no_registry(lock):
    for block in blocks(lock):
        first, *hashes = [line.strip(" \\") for line in block.splitlines()]
        assert re.match(r"[\w.\[\],-]+==[\w.]+( ; [\w. '<>=!()*-]+)?$", first), first
        assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", h) for h in hashes), first


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_hold_what_the_package_requires(lock):
    extras, pythons = LOCKS[lock]
    for python in pythons:
        locked = pins(lock, python)
        for required in requirements(*extras):
            if required.marker and not required.marker.evaluate(on_linux(python)):
                continue
            version = locked.get(canonicalize_name(required.name))
            assert version, f"{lock}: no {required.name}; `make locks`"
            assert required.specifier.contains(version, prereleases=True), (required, version)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_is_laid_over_the_main_environment_replaces_nothing(python):
    main, over = pins("requirements/main.lock", python), pins(OVER, python)
    assert not set(main) & set(over)
    for required in requirements("all-tests"):
        name = canonicalize_name(required.name)
        assert required.specifier.contains({**main, **over}[name]), required


def test_a_plain_install_leaves_tensorflow_jax_libtpu_and_numpy_alone():
    clients = {"google-cloud-tpu", "google-cloud-compute", "grpcio", "grpcio-status", "protobuf"}
    for required in requirements():
        assert not LEAVE_ALONE.match(required.name) and required.name not in clients, required
        capped = [s for s in required.specifier if s.operator not in (">=", "!=")]
        assert not capped, f"{required}: could replace what a machine has"


@pytest.mark.parametrize("image", IMAGES_PYTHONS)
def test_the_vm_of_launch_gets_what_is_required_and_the_packages_of_the_extras(image):
    extras = ("estimator",) if image == "tf-2.15" else ("tpu", "cpu")
    wanted = {canonicalize_name(r.name): r for r in requirements(*extras) if r.name != "setuptools"}
    for python in IMAGES_PYTHONS[image]:
        needed = pins(f"{MACHINES}/needed.lock", python)
        beside = pins(f"{MACHINES}/{image}.lock", python)
        assert not {"numpy", "protobuf", *filter(LEAVE_ALONE.match, needed)} & {*needed}
        assert {*wanted} - NOT_FOR_TRAINING - {*needed, *beside} <= NOT_BESIDE
        for name, version in {**beside, **needed}.items():
            assert name not in wanted or wanted[name].specifier.contains(version), (name, version)


@pytest.mark.parametrize(
    ("image", "python"), [(i, python) for i in IMAGES_PYTHONS for python in IMAGES_PYTHONS[i]]
)
def test_what_a_machine_installs_resolves_by_hash_for_its_images_python(image, python, tmp_path):
    locks = [f"--requirements={ROOT}/{MACHINES}/{name}.lock" for name in ("needed", image)]
    where = ("--python-version", python, "--python-platform", "x86_64-manylinux_2_31")
    how = ("--dry-run", "--require-hashes", "--only-binary=:all:", "--target", tmp_path, "--quiet")
    done = with_index("pip", "install", *locks, *where, *how)
    assert done.status == 0, done.stderr


@pytest.mark.parametrize("image", ["kaggle-tpu.txt", "colab-tpu.txt"])
def test_it_installs_beside_what_the_images_of_free_tpus_pin(image, tmp_path):
    """Resolved by uv with the image's versions as constraints, as the notebooks ask pip to."""
    frozen = (IMAGES / image).read_text(encoding="utf-8")
    python = re.search(r"# Python (\S+)", frozen)
    wanted = tmp_path / "wanted.in"
    names = [str(required) for required in requirements("preflight", "huggingface")]
    wanted.write_text("\n".join([*names, "tensorflow-cpu"]), encoding="utf-8")
    where = ("--python-version", python[1], "--python-platform", "x86_64-manylinux_2_31")
    how = ("--constraint", IMAGES / image, "--quiet", "--no-header", *where)
    done = with_index("pip", "compile", wanted, *how)
    assert done.status == 0, done.stderr
    lines = [line.split("==") for line in frozen.splitlines() if "==" in line]
    pinned = {canonicalize_name(name): version for name, version in lines}
    for name, version in re.findall(r"(?m)^([\w.-]+)==(\S+)", done.stdout):
        pin = pinned.get(canonicalize_name(name), version)
        assert pin == version, f"{name} {version} replaces the image's"
