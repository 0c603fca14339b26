"""`docs/api.md` lists every function of the Python interface, and the page's examples run."""

import re
import sys

import pytest

import bigbird_ja
from testkit import ROOT, command_line

PAGE = (ROOT / "docs/api.md").read_text("utf-8")


@pytest.mark.parametrize("name", bigbird_ja.FUNCTIONS)
def test_the_page_has_every_function(name):
    assert f"::: bigbird_ja.{bigbird_ja.FUNCTIONS[name]}.{name}\n" in PAGE


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_examples_run_on_a_toy_corpus(tmp_path):
    """Run the two examples of `docs/api.md`, one with a preset and one with a `Config`."""
    pytest.importorskip("safetensors", reason="export needs the huggingface extra")
    whole, with_config = re.findall(r"(?s)```python\n(.*?)```", PAGE)
    program = f"{whole}\n{with_config}\nprint(config.model.num_layers)\n"
    for old, new in {
        "documents=400": "documents=80",
        "bb.pretrain(": "bb.pretrain(num_train_steps=4, ",
    }.items():
        assert old in program
        program = program.replace(old, new)
    (tmp_path / "road.py").write_text(indent(program), "utf-8")
    ended = command_line.run(sys.executable, "road.py", cwd=tmp_path, timeout=800)
    assert ended.status == 0, ended.stderr[-3000:]
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("4 ") and lines[-1] == "3"
    assert (tmp_path / "hf/model.safetensors").exists() and (tmp_path / "run-3").is_dir()


def indent(program):
    """Indent a program below `if __name__ == "__main__"`, since child processes import its file."""
    body = "\n".join(f"    {line}" for line in program.splitlines())
    return f'if __name__ == "__main__":\n{body}\n'
