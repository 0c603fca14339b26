"""The package as it is installed: from a wheel, in an empty folder."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bigbird_ja.launch import startup
from bigbird_ja.settings.resolve import preset_names, preset_path
from testkit import ROOT


def test_the_wheel_for_a_vm_holds_every_preset() -> None:
    with zipfile.ZipFile(io.BytesIO(startup.build_wheel().content)) as archive:
        held = set(archive.namelist())
    presets = {f"bigbird_ja/settings/presets/{name}.yaml" for name in preset_names()}
    assert presets and presets <= held


def test_configs_of_a_checkout_are_the_packages_presets() -> None:
    paths = list((ROOT / "configs").glob("*.yaml"))
    assert sorted(path.stem for path in paths) == preset_names()
    for path in paths:
        assert path.resolve() == Path(preset_path(path.stem)).resolve()


@pytest.mark.nightly
def test_presets_go_by_name_in_an_empty_folder(tmp_path: Path) -> None:
    source, site, folder = (tmp_path / name for name in ("source", "site", "empty"))
    shutil.copytree(ROOT / "bigbird_ja", source / "bigbird_ja")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", source, "--target", site, "--no-deps",
         "--no-index", "--no-build-isolation", "--disable-pip-version-check"],
        check=True, capture_output=True,
    )  # fmt: skip

    def run(*command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True,
            env={"PYTHONPATH": str(site), "HOME": str(folder)},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def bigbird_ja(*words: str) -> tuple[int, dict]:
        status, out, err = run(f"{site}/bin/bigbird-ja", *words, "--json")
        assert "Traceback" not in err
        return status, json.loads(out)

    assert str(site) in run("-c", "import bigbird_ja; print(bigbird_ja.__file__)")[1]
    status, result = bigbird_ja("config", "base-4096")
    assert status == 0
    assert result["settings"]["model.num_random_blocks"]["source"] == "preset base-4096"
    status, result = bigbird_ja("plan", "--config=tiny-cpu")
    assert status == 0 and result["tokens_per_step"] == 8 * 512
    status, result = bigbird_ja("plan", "--config=base-409")
    assert status == 2 and "'base-4096'" in result["error"]
    status, result = bigbird_ja("plan", "--config", "configs/base-4096.yaml")
    assert status == 2 and "configs/base-4096.yaml: no such file" in result["error"]
    assert list(folder.iterdir()) == []
