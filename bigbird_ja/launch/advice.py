"""Explanations of refusals by the services that rent TPUs, with remedies."""

from bigbird_ja.accelerators.chips import Accelerator
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.rest import Kind, ServiceFault

FAMILIES = {"v5e": "CT5LP", "v5p": "CT5P", "v6e": "CT6E", "v7x": "TPU7X"}
TRC = (
    "Compute Engine bills this machine: grants of the TPU Research Cloud (TRC) are quota only for"
    " the Cloud TPU API"
)


def format_quota(machine: Accelerator, service: str, pricing: str) -> str:
    """Return the name of a machine's quota, as the console shows it.

    Sources: Google's pages about quotas and about inference with v5e (2025 and 2026), and refusals
    in users' reports.
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
    """Return one line with the service's refusal and its remedy."""
    what, project, lowered = run.accelerator_type, run.project, fault.message.lower()
    answer = f'the service answered: "{fault.message}"'
    is_vm = run.service == "compute"
    api, role = ("compute", "compute.instanceAdmin.v1") if is_vm else ("tpu", "tpu.admin")
    if fault.kind is Kind.QUOTA:
        return (
            f"project {project} has no quota for {what} in {zone} ({answer}): request more of"
            f" {format_quota(run.accelerator, run.service, run.pricing)}, on"
            f" https://console.cloud.google.com/iam-admin/quotas (service {api}.googleapis.com;"
            " defaults: docs/cloud-setup.md); delete dead TPUs, which still use it"
            " (`bigbird-ja down`), or choose other `zones`"
            + ("; the Cloud TPU API has a separate quota (`service` tpu)" if is_vm else "")
        )
    if fault.is_switched_off:
        api = "compute" if "compute" in lowered else api
        name = {"compute": "Compute Engine", "tpu": "Cloud TPU"}[api]
        return (
            f"the {name} API is off in project {project} ({answer}): run"
            f" `gcloud services enable {api}.googleapis.com --project={project}`"
        )
    if "not allowed to use the machine type" in lowered:
        return (
            f"Compute Engine does not rent {what} to users ({answer}): use `service` tpu, as"
            " documented on the chip's page"
        )
    if fault.kind is Kind.PERMISSION and ("actas" in lowered or "service account" in lowered):
        return (
            f"you are not allowed to use the TPU's service account ({answer}): grant yourself"
            " roles/iam.serviceAccountUser on it (command: docs/cloud-setup.md)"
        )
    if fault.kind is Kind.PERMISSION and "credentials" in lowered:
        return (
            f"no valid Google credentials ({answer}): run `gcloud auth application-default login`"
        )
    if fault.kind is Kind.PERMISSION:
        return (
            f"access to project {project}, zone {zone} is denied ({answer}): grant roles/{role} to"
            " the account that runs `launch` (commands: docs/cloud-setup.md), and check the names"
            " of project and zone"
        )
    if fault.kind in (Kind.BAD_REQUEST, Kind.NOT_FOUND):
        return (
            f"the service refused the request for {what} in {zone} ({answer}): check"
            " `accelerator_type`, `zones`, `runtime_version` and `network`"
        )
    return f"{fault.kind.value} in {zone}: {answer}"
