"""The notebook and the set-up guide: every command of ours in them exists, flags and all."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex

import pytest

from bigbird_ja import cli, command_flags
from scripts import make_state_tables

PLACES = {
    "{ROOT}": "/r",
    "{SOURCE}": ".",
    "{CONFIG}": "c",
    "{INPUT}": "i",
    "{DEVICE}": "--nouse_tpu",
}


def cells(kind: str) -> list[str]:
    with open("notebooks/colab.ipynb", encoding="utf-8") as file:
        notebook = json.load(file)
    assert notebook["nbformat"] == 4
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == kind]


def commands_of_the_notebook() -> list[str]:
    lines = [line.strip() for cell in cells("code") for line in cell.splitlines()]
    found = [line[1:] for line in lines if line.startswith("!bigbird-ja")]
    for place, value in PLACES.items():
        found = [line.replace(place, value) for line in found]
    return found


def commands_of_the_guide() -> list[str]:
    with open("docs/cloud-setup.md", encoding="utf-8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("#")[0] for line in lines if line.startswith("bigbird-ja")]


def test_the_notebook_trains_on_the_runtime_that_colab_brings() -> None:
    """On its TPU, too: what `DEVICE` says there parses, and the batch divides over one chip."""
    (line,) = [line for line in commands_of_the_notebook() if " pretrain " in line]
    (device,) = re.findall(r"DEVICE = '(--use_tpu.*?)'", "\n".join(cells("code")))
    words = shlex.split(line.replace("--nouse_tpu", device).replace("--config c", ""))[2:]
    args = command_flags.parse(
        cli.load_command("pretrain"), "pretrain", [*words, "--config=base-4096-v2"]
    )
    assert args.engine == "pjrt" and args.use_tpu
    training = command_flags.resolve(args)[0].training
    assert training.global_batch_size % training.gradient_accumulation_steps == 0
    installs = [line for cell in cells("code") for line in cell.splitlines() if "!pip" in line]
    assert not [line for line in installs if re.search(r"jax|libtpu|estimator|2\.15", line)]
    with open("notebooks/colab.ipynb", encoding="utf-8") as file:
        outputs = [c["outputs"] for c in json.load(file)["cells"] if c["cell_type"] == "code"]
    assert not any(outputs)


@pytest.mark.parametrize("line", [*commands_of_the_notebook(), *commands_of_the_guide()])
def test_commands_parse(line: str) -> None:
    words = shlex.split(line)[1:]
    if words == ["--version"]:
        return
    name = f"bigbird_ja.commands.{words[0].replace('-', '_')}"
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            pytest.skip(f"{words[0]} is not here yet")
        raise
    command_flags.parse(cli.load_command(words[0]), words[0], words[1:])


def test_the_rest_of_the_notebook_is_python() -> None:
    for cell in cells("code"):
        lines = [re.sub(r"^(\s*)!.*", r"\1pass", line) for line in cell.splitlines()]
        ast.parse("\n".join(lines))


def test_the_design_page_shows_the_supervisors_rules() -> None:
    """`python -m scripts.make_state_tables` writes them."""
    with open(make_state_tables.PAGE, encoding="utf-8") as file:
        text = file.read()
    assert make_state_tables.page(text) == text
    assert text.count("| `removing` |") > 10
