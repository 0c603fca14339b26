"""The package as it is installed: from a wheel, in a fresh environment, in an empty folder."""

from __future__ import annotations

import io
import json
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from bigbird_ja.launch import startup
from bigbird_ja.settings.resolve import preset_names, preset_path
from testkit import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Of the package's requirements, what a TPU VM's image has, or what training does without.
NOT_FOR_TRAINING = {"google-auth", "matplotlib", "numpy", "requests", "tensorflow-datasets"}


def test_the_wheel_for_a_vm_holds_every_preset() -> None:
    with zipfile.ZipFile(io.BytesIO(startup.build_wheel().content)) as archive:
        held = set(archive.namelist())
    assert (
        preset_names() and {f"bigbird_ja/settings/presets/{n}.yaml" for n in preset_names()} <= held
    )


def test_the_vm_installs_what_the_package_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {line.split(";")[0].split("[")[0].strip() for line in project["dependencies"]}
    names = {name.rstrip("<>=!~.0123456789, ") for name in required} - NOT_FOR_TRAINING
    installed = {pin.partition("==")[0] for pin in startup.requirements()}
    assert names - installed == set()


def test_configs_of_a_checkout_are_the_packages_presets() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        assert path.resolve() == Path(preset_path(path.stem)).resolve()
    assert sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")) == preset_names()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with nothing but the package's wheel, and what this one has."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    shutil.copytree(ROOT / "bigbird_ja", source / "bigbird_ja")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", "--no-build-isolation", *offline, "-w", place],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    venv.create(place / "env", with_pip=False)
    python = place / "env/bin/python"
    (made,) = place.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *offline, made],
        check=True, capture_output=True,
    )  # fmt: skip
    result = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # A path in a .pth file: what lies there can be imported, its own .pth files are not read.
    (Path(result.stdout.strip()) / "rest.pth").write_text(site.getsitepackages()[0] + "\n")
    return place / "env/bin"


def run(
    installed: Path, folder: Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = subprocess.run(
        [installed / "bigbird-ja", *arguments, "--json"], cwd=folder, capture_output=True,
        text=True, env={"PATH": str(installed), "HOME": str(folder)},
    )  # fmt: skip
    return done, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_presets_go_by_name_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [installed / "python", "-c", "import bigbird_ja; print(bigbird_ja.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={"PATH": str(installed)},
    ).stdout  # fmt: skip
    assert str(installed.parent) in where
    done, result = run(installed, tmp_path, "config", "base-4096")
    assert done.returncode == 0, done.stderr
    assert result["settings"]["model.num_random_blocks"]["source"] == "preset base-4096"
    done, result = run(installed, tmp_path, "plan", "--config=tiny-cpu")
    assert done.returncode == 0 and result["tokens_per_step"] == 8 * 512, done.stderr
    done, result = run(installed, tmp_path, "plan", "--config=base-409")
    assert done.returncode == 2 and "'base-4096'" in done.stderr
    assert all(name in result["error"] for name in preset_names())
    done, result = run(installed, tmp_path, "plan", "--config", "configs/base-4096.yaml")
    assert done.returncode == 2 and "--config base-4096" in result["error"]
    assert list(tmp_path.iterdir()) == []
