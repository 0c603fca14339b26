"""`make mutants` names modules and tests that there are."""

import yaml

from testkit import ROOT


def test_every_module_and_test_is_there():
    text = (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool.mutmut]\n")[2]
    listed = [line for line in text.partition("\n[")[0].splitlines() if line.startswith('  "')]
    paths = [yaml.safe_load(f"[{line}]")[0].partition("::")[0] for line in listed]
    assert len(paths) > 20 and [path for path in paths if not (ROOT / path).exists()] == []
