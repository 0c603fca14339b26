"""The package that `launch` sends to a machine is complete.

`scripts/check_wheel.sh` tests the wheel.
"""

import io
import zipfile
from pathlib import Path

from bigbird_ja.launch import package
from bigbird_ja.settings.config_file import get_preset_path, list_presets
from testkit import ROOT


def test_the_package_for_a_machine_has_every_preset():
    with zipfile.ZipFile(io.BytesIO(package.build())) as archive:
        held = set(archive.namelist())
    presets = {f"bigbird_ja/settings/presets/{name}.yaml" for name in list_presets()}
    assert presets and presets <= held


def test_configs_of_a_checkout_link_to_the_presets():
    assert (ROOT / "configs/tiny-cpu.yaml").resolve() == Path(get_preset_path("tiny-cpu")).resolve()
    assert (ROOT / "configs").is_symlink()
