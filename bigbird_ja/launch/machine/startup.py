"""Metadata of a rented machine: its start-up script, and the run that owns it."""

import json
import re
import shlex

from bigbird_ja import storage
from bigbird_ja.launch.backends import MODULES, Vm, choose_engine
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.launch.machine import watcher
from bigbird_ja.launch.package import lock, read_packaged
from bigbird_ja.launch.service import RUN_DIR_KEY
from bigbird_ja.launch.state import CREATE_TIMEOUT, RunState

_PLACE = re.compile(r"@@([A-Z0-9_]+)@@")


def make_metadata(run: LaunchedRun, vm: Vm, state: RunState) -> dict[str, str]:
    """Return the metadata of a machine: its start-up script, and the run that owns it.

    Args:
        run: record of the run.
        vm: environment of the machine.
        state: state of the run, with the machine's zone, attempt number and maximum lifetime.
    """
    return {"startup-script": fill(run, vm, make_terms(run, vm, state)), RUN_DIR_KEY: run.run_dir}


def make_terms(run: LaunchedRun, vm: Vm, state: RunState) -> watcher.Terms:
    """Return the limits that the machine's watcher enforces.

    Args:
        run: record of the run.
        vm: environment of the machine.
        state: state of the run, with the machine's zone, attempt number and maximum lifetime.
    """
    requested, hours = state.machine.requested if state.machine else 0.0, 0.0
    # For a queued machine without `max_hours`, the time since the request does not count as part of
    # the machine's lifetime.
    if run.queued and run.max_seconds is None:
        requested = 0.0
    elif run.queued and run.max_seconds is not None:
        hours = run.max_seconds - state.elapsed_seconds
    return watcher.Terms(
        attempt=state.attempt,
        limit=state.machine_limit,
        lease=run.lease,
        supervisor_dir=storage.join(run.run_dir, "supervisor"),
        model_dir=run.model_dir,
        delete=MODULES[run.service].delete_addresses(vm.api, run, state.zone),
        requested=requested,
        hours_left=hours,
        hosts=run.hosts,
        **vm.terms,
    )


def fill(run: LaunchedRun, vm: Vm, terms: watcher.Terms) -> str:
    """Return the start-up script of a machine, with every value quoted for the shell."""
    engine = choose_engine(run.accelerator, run.engine)
    values = {
        "RUN_NAME": run.name,
        "ATTEMPT": terms.attempt,
        "PACKAGE": run.package,
        "PACKAGE_SHA256": run.package_sha256,
        "LOCK": lock(engine) if vm.installs else "",
        "PYTHON": run.vm_python,
        "SERVICE_MANAGER": vm.service_manager,
        "HOSTS": run.hosts,
        "TERMS": json.dumps(vars(terms)),
        "WATCHER": read_packaged("machine/watcher.py"),
    }
    words = {name: shlex.quote(str(value)) for name, value in values.items()}
    words["PRETRAIN_FLAGS"] = shlex.join(pretrain_flags(run, vm))
    # All placeholders are replaced in one pass, so that a value that looks like a placeholder stays
    # unchanged.
    return _PLACE.sub(lambda match: words[match[1]], read_packaged("machine/startup.sh"))


def pretrain_flags(run: LaunchedRun, vm: Vm) -> list[str]:
    """Return the flags of `pretrain` on the machine."""
    places = {"config": run.config_path, "data_dir": run.data_dir, "model_dir": run.model_dir}
    flags = [f"--{name}={place}" for name, place in places.items()]
    flags += ["--use_tpu", "--tpu_name=local"] if vm.device == "tpu" else ["--nouse_tpu"]
    if run.engine != "auto":
        flags.append(f"--engine={run.engine}")
    flags += [f"--init_from={run.init_from}"] if run.init_from else []
    flags += [f"--mode={run.mode}"] if run.mode != "train" else []
    if run.hosts > 1:
        # Each host of a slice waits for a rebooting host for `CREATE_TIMEOUT` seconds, like the
        # supervisor.
        flags.append(f"--pod_wait_seconds={CREATE_TIMEOUT:.0f}")
    return flags
