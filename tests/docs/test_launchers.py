"""The examples for other launchers: read by their own code, and our command in them parses."""

import shlex

import pytest
import yaml

from bigbird_ja import cli
from bigbird_ja.cli import command_flags
from testkit import ROOT

SKYPILOT = ROOT / "docs/examples/skypilot.yaml"
JOBSETS = list(yaml.safe_load_all((ROOT / "docs/examples/jobset.yaml").read_text("utf-8")))
# Keys of the custom resource's schema that the example uses; unknown ones are dropped in silence
# (kubernetes-sigs/jobset at 08dfbdfd, config/components/crd/bases).
SPEC = {"failurePolicy", "replicatedJobs"}
FAILURE_POLICY = {"maxRestarts", "rules"}
RULE = {"name", "action", "onJobFailureReasons"}
REPLICATED_JOB = {"name", "replicas", "template"}


def parsed(words):
    """Flags of a `pretrain` command, with a folder in place of each variable."""
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


def test_skypilot_reads_its_example(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    sky = pytest.importorskip("sky", reason="pip install skypilot (570 MB) reads the example")
    task = sky.Task.from_yaml(str(SKYPILOT))
    (resources,) = task.resources
    assert resources.use_spot and resources.accelerators == {"tpu-v5litepod-8": 1}
    assert resources.job_recovery["recover_on_exit_codes"] == [75, 76]


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
    assert jobset["spec"].keys() <= SPEC
    assert jobset["spec"]["failurePolicy"].keys() <= FAILURE_POLICY
    assert all(rule.keys() <= RULE for rule in jobset["spec"]["failurePolicy"]["rules"])
    assert all(each.keys() <= REPLICATED_JOB for each in jobset["spec"]["replicatedJobs"])


@pytest.mark.parametrize("jobset", JOBSETS, ids=lambda each: each["metadata"]["name"])
def test_kubernetes_schema_takes_the_jobs_of_the_jobsets(jobset):
    validator = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate checks the example"
    )
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slice"}}
    validator.validate(job | {"spec": pod(jobset)[0]}, "1.34", strict=True)
    with pytest.raises(validator.ValidationError):
        validator.validate(job | {"spec": {**pod(jobset)[0], "paralelism": 4}}, "1.34", strict=True)
