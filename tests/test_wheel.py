"""The package as it is installed: from a wheel, in an empty folder."""

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from bigbird_ja.launch import package
from bigbird_ja.settings.resolve import preset_names, preset_path
from testkit import ROOT, command_line


def test_the_package_for_a_vm_holds_every_preset():
    with zipfile.ZipFile(io.BytesIO(package.build())) as archive:
        held = set(archive.namelist())
    presets = {f"bigbird_ja/settings/presets/{name}.yaml" for name in preset_names()}
    assert presets and presets <= held


def test_configs_of_a_checkout_are_the_packages_presets():
    assert (ROOT / "configs/tiny-cpu.yaml").resolve() == Path(preset_path("tiny-cpu")).resolve()
    assert (ROOT / "configs").is_symlink()


@pytest.mark.nightly
def test_presets_go_by_name_in_an_empty_folder(tmp_path):
    source, site, folder = (tmp_path / name for name in ("source", "site", "empty"))
    shutil.copytree(ROOT / "bigbird_ja", source / "bigbird_ja")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    folder.mkdir()
    flags = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    done = command_line.run_module("pip", "install", source, "--target", site, *flags)
    assert done.status == 0, done.stderr
    locks = {path.name for path in (ROOT / "bigbird_ja/launch/locks").iterdir()}
    assert {path.name for path in (site / "bigbird_ja/launch/locks").iterdir()} == locks

    def run(*command):
        environ = {"PYTHONPATH": str(site), "HOME": str(folder)}
        return command_line.run(sys.executable, *command, cwd=folder, env=environ).stdout

    assert str(site) in run("-c", "import bigbird_ja; print(bigbird_ja.__file__)")
    result = json.loads(run(f"{site}/bin/bigbird-ja", "config", "base-4096", "--json"))
    assert result["settings"]["model.num_random_blocks"]["source"] == "preset base-4096"
    result = json.loads(run(f"{site}/bin/bigbird-ja", "plan", "--config=tiny-cpu", "--json"))
    assert result["tokens_per_step"] == 4 * 512
    assert list(folder.iterdir()) == []
