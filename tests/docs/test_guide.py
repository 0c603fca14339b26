"""Commands of the README and of the guides can be executed as they are printed.

Blocks of the guide with the mark "runs here" are executed, both as commands and in Python. Commands
in other blocks are only parsed, with two exceptions: `plan` without --data_dir is executed, and
`launch` is executed with --dry_run.
"""

import json
import os
import re
import shlex
import sys

import pytest

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from testkit import ROOT
from testkit.command_line import run

GUIDE = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("guide", "continue", "machines", "free")))
BLOCKS = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
FENCED = re.findall(
    r"(?ms)^```(\w*)\n(.*?)^```$", "".join((ROOT / page).read_text("utf-8") for page in PAGES)
)
OTHERS = "".join(text for kind, text in FENCED if not kind).replace("\\\n", " ")
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for line in OTHERS.splitlines()
    if line.startswith("bigbird-ja")
]


def test_each_block_of_both_guides_says_that_it_runs_here():
    japanese = (ROOT / "docs/guide.ja.md").read_text(encoding="utf-8")
    assert len(BLOCKS) == len(re.findall(r"\*\*[Rr]uns here\*\*", GUIDE)) > 8
    assert len(BLOCKS) == len(re.findall(r"\*\*手元で実行できます\*\*", japanese))
    assert len(BLOCKS) == len(PYTHON), "each step is shown as a command and in Python"


@pytest.fixture
def encoders(tmp_path, monkeypatch):
    """Create the folders `encoder` and `bert` of the guide in a new working directory."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
    sizes |= {"vocab_size": 1000, "intermediate_size": 512}
    for folder, kind in (("encoder", "modernbert"), ("bert", "bert")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").write_text("weights")
        (tmp_path / folder / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_that_rent_or_take_hours_parse_and_launch_as_printed(words, encoders, capsys):
    args = command_flags.parse(cli.load_command(words[0]), words[0], words[1:])
    if words[0] == "pretrain" and "gs://" in " ".join(words):
        assert args.use_tpu, "trains on a TPU"
    if words[0] == "launch" or (words[0] == "plan" and not args.data_dir):
        dry = ["--dry_run", "--json"] if words[0] == "launch" else ["--json"]
        status = cli.run_command_line([*words, *dry])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        if words[0] == "launch":
            result = json.loads(printed.out)
            assert result["needs"]["covered"] >= 1, "the limit is too low for the run"
            scripts = json.dumps(result["requests"])
            assert ("--init_from=" in scripts) == bool(args.init_from)
            assert ("--mode=train_and_eval" in scripts) == (args.mode == "train_and_eval")


def test_the_recommended_path_can_be_launched():
    launched = [words for words in COMMANDS if words[0] == "launch" and "--init_from" in words]
    sources = {words[words.index("--init_from") + 1] for words in launched}
    assert sources == {"encoder", "bert", "gs://BUCKET/short/model"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_guide_runs_as_printed(tmp_path):
    # Put a script named bigbird-ja first in PATH, since the environment may not have it installed.
    command = tmp_path / "bin/bigbird-ja"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bigbird_ja "$@"\n')
    command.chmod(0o755)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environ = {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    for block in BLOCKS:
        done = run("bash", "-e", "-c", block, cwd=tmp_path, env=environ, timeout=1200)
        assert done.status == 0, f"{block}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
    # The commands have finished every step, so the guide's Python calls train no step. They would
    # fail if their settings differed from those of the commands.
    script = "import bigbird_ja as bb\n" + "".join(PYTHON)
    environ["PYTHONPATH"] = str(ROOT)
    done = run(sys.executable, "-c", script, cwd=tmp_path, env=environ, timeout=1200)
    assert done.status == 0, done.stderr[-2000:]
    for made in ("report.html", "hf/model.safetensors", "saved/saved_model.pb", "model-512"):
        assert (tmp_path / "guide" / made).exists(), made
