"""The examples for SkyPilot and JobSet contain valid commands. JobSets use all chips of a slice."""

import shlex

import pytest
import yaml

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from testkit import ROOT

SKYPILOT = ROOT / "docs/examples/skypilot.yaml"
JOBSETS = list(yaml.safe_load_all((ROOT / "docs/examples/jobset.yaml").read_text("utf-8")))


def parsed(words):
    """Check that the words are a `pretrain` command, and return its flags."""
    program, command, *flags = words
    assert program.rpartition("/")[2] == "bigbird-ja" and command == "pretrain"
    return command_flags.parse(cli.load_command(command), command, flags)


def pod(jobset):
    (job,) = jobset["spec"]["replicatedJobs"]
    return job["template"]["spec"], job["template"]["spec"]["template"]["spec"]


def test_the_command_of_the_skypilot_example_parses():
    text = yaml.safe_load(SKYPILOT.read_text("utf-8"))["run"].replace("\\\n", " ")
    args = parsed(shlex.split(text, comments=True))
    assert args.use_tpu and args.engine == "pjrt" and args.model_dir.startswith("$BUCKET/")


@pytest.mark.parametrize("jobset", JOBSETS, ids=lambda each: each["metadata"]["name"])
def test_the_commands_of_the_jobsets_parse_and_fill_the_slice(jobset):
    job, spec = pod(jobset)
    (container,) = spec["containers"]
    args = parsed([*container["command"], *container["args"]])
    assert args.use_tpu and args.engine == "pjrt"
    chips = job["parallelism"] * container["resources"]["limits"]["google.com/tpu"]
    shape = spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    assert chips == int(shape[0]) * int(shape[1]) and job["completions"] == job["parallelism"]
    assert jobset["metadata"]["labels"]["slice"].endswith(f"-{chips}")
