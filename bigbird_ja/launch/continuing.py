"""`launch --continue_with`: whether a launched run can go on with other settings now."""

from __future__ import annotations

from collections.abc import Sequence

from bigbird_ja.launch.faults import ServiceFault, advice
from bigbird_ja.launch.run_files import BucketFiles, read_launched
from bigbird_ja.launch.start import Prepared
from bigbird_ja.launch.tpu_service import Tpus
from bigbird_ja.process.errors import BadInput, StorageError


def check(prepared: Prepared, keys: Sequence[str], tpus: Tpus) -> None:
    """Refuses what would change nothing, or something else than is meant. Writes nothing.

    Args:
        keys: of the settings that change.

    Raises:
        BadInput: no such run, none of its steps is saved yet, or its TPU is still there.
        StorageError: the service does not say.
    """
    paths, flag = prepared.paths, f"--continue_with {keys[0]}"
    if read_launched(paths) is None:
        raise BadInput(
            f"{flag}: no run {paths.name!r} was launched on {paths.bucket}: a new one takes it by"
            " --set"
        )
    files = BucketFiles(paths)
    if files.checkpoint_step() < 0:
        raise BadInput(f"{flag}: {paths.model_dir} has no checkpoint to go on from yet")
    state = files.load_state()
    used = state.used_zones if state else ()
    for zone in dict.fromkeys((*prepared.settings.zones, *used)):
        try:
            found = [tpu for tpu in tpus.list(zone) if tpu.run == paths.name]
        except ServiceFault as fault:
            said = advice(fault, prepared.project, zone, prepared.spec.accelerator_type)
            raise (StorageError if fault.is_passing else BadInput)(f"{flag}: {said}") from fault
        if found:
            raise BadInput(
                f"{flag}: the TPU of {paths.name} in {zone} trains with the old settings: first"
                f" `bigbird-ja down --project {prepared.project} --name {paths.name}`"
            )
