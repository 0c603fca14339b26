"""Advice on refusals of the services: meaning and remedy of each."""

from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault

FAMILIES = {"v5e": "CT5LP", "v5p": "CT5P", "v6e": "CT6E", "v7x": "TPU7X"}
TRC = (
    "Compute Engine bills this machine: grants of the TPU Research Cloud (TRC) are quota of the"
    " Cloud TPU API only"
)


def quota_name(machine: Accelerator, service: str, pricing: str) -> str:
    """Return the name of the quota that a machine counts against, as the console shows it.

    Sources: Google's pages on quotas and on inference with v5e (2025 and 2026), and the names in
    refusals that users reported.
    """
    is_spot = pricing == "spot"
    if service == "compute":
        name = ("PREEMPTIBLE_" if is_spot else "") + "TPUS_PER_TPU_FAMILY"
        return f"{name} for {FAMILIES[machine.chip]}, by region"
    if machine.chip == "v5e":
        serving = "-serving" if machine.hosts == 1 else ""
        why = "v5litepod-1, -4 and -8 count as serving" if serving else "for training"
        name = f"tpu-v5s-litepod{serving}{'-preemptible' if is_spot else ''}"
        return f"{name} ({why}), by zone"
    kind = "preemptible" if is_spot else "on-demand"
    return f"{kind} {machine.chip} cores, by zone and region"


def advise(fault: ServiceFault, run: LaunchedRun, zone: str = "-") -> str:
    """Return one line with a refusal, in the service's own words, and its remedy."""
    what, project, lowered = run.accelerator_type, run.project, fault.message.lower()
    answer = f'the service answered: "{fault.message}"'
    is_vm = run.service == "compute"
    api, role = ("compute", "compute.instanceAdmin.v1") if is_vm else ("tpu", "tpu.admin")
    if fault.kind is Kind.QUOTA:
        return (
            f"project {project} has no quota for {what} in {zone} ({answer}): ask for more of"
            f" {quota_name(run.accelerator, run.service, run.pricing)}, on"
            f" https://console.cloud.google.com/iam-admin/quotas (service {api}.googleapis.com;"
            " docs/cloud-setup.md has the defaults); delete dead TPUs that still hold it"
            " (`bigbird-ja down`), or name other `zones`"
            + ("; the Cloud TPU API has a quota of its own (`service` tpu)" if is_vm else "")
        )
    if fault.is_switched_off:
        api = "compute" if "compute" in lowered else api
        name = {"compute": "Compute Engine", "tpu": "Cloud TPU"}[api]
        return (
            f"the {name} API is off in project {project} ({answer}):"
            f" gcloud services enable {api}.googleapis.com --project={project}"
        )
    if "not allowed to use the machine type" in lowered:
        return (
            f"Compute Engine does not rent {what} to users ({answer}): use `service` tpu, which the"
            " page of the chip documents"
        )
    if fault.kind is Kind.PERMISSION and ("actas" in lowered or "service account" in lowered):
        return (
            f"you may not run as the TPU's service account ({answer}): grant yourself"
            " roles/iam.serviceAccountUser on it (docs/cloud-setup.md has the command)"
        )
    if fault.kind is Kind.PERMISSION and "credentials" in lowered:
        return (
            f"no valid Google credentials ({answer}): run `gcloud auth application-default login`"
        )
    if fault.kind is Kind.PERMISSION:
        return (
            f"not allowed in project {project}, zone {zone} ({answer}): grant roles/{role} to"
            " the account that runs `launch` (docs/cloud-setup.md has the commands), and check the"
            " names of project and zone"
        )
    if fault.kind in (Kind.BAD_REQUEST, Kind.NOT_FOUND):
        return (
            f"the service refuses the request for {what} in {zone} ({answer}): check"
            " `accelerator_type`, `zones`, `runtime_version` and `network`"
        )
    return f"{fault.kind.value} in {zone}: {answer}"
