"""Every block of the guide that is marked as running on a CPU runs as it is printed."""

import os
import re
import sys

import pytest

from testkit import ROOT
from testkit.command_line import run

GUIDE = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)


def test_each_block_says_that_it_runs_here():
    marked = len(re.findall(r"\*\*[Rr]uns here\*\*", GUIDE))
    assert len(BLOCKS) == marked > 8


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_guide_runs_as_printed(tmp_path):
    # The command as installed, whatever the environment: a script of that name, first in PATH.
    command = tmp_path / "bin/bigbird-ja"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bigbird_ja "$@"\n')
    command.chmod(0o755)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environ = {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    for block in BLOCKS:
        done = run("bash", "-e", "-c", block, cwd=tmp_path, env=environ, timeout=1200)
        assert done.status == 0, f"{block}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
    for made in ("report.html", "hf/model.safetensors", "saved/saved_model.pb", "model-512"):
        assert (tmp_path / "guide" / made).exists(), made
