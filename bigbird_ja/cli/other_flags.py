"""Answers flags that are none: those that went, and those that people expect from elsewhere."""

_SAME_COMMAND = "the same command again goes on by itself"
_GPU = "a GPU is used without a flag, where JAX finds one: `bigbird-ja doctor` says"
_BY_STEPS = "training is counted in steps, --num_train_steps; `plan` says how many an epoch has"
_PODS = "JAX's own variables say it, such as JAX_COORDINATOR_ADDRESS (docs/pods.md)"
_FIXED = "the usual value serves"

# By flag, or by "command.flag" where it is meant in one command alone.
_ANSWERS: dict[str, str] = {
    **dict.fromkeys(("resume", "resume_from", "resume_from_checkpoint"), _SAME_COMMAND),
    **dict.fromkeys(("gpu", "gpus", "use_gpu", "cuda", "device"), _GPU),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), _BY_STEPS),
    # Of earlier versions.
    "config.command": "`bigbird-ja COMMAND --help` lists a command's settings",
    "evaluate.watch": "`pretrain --mode train_and_eval`, or --step all",
    "report.watch": "run `report` again",
    "report.interval": "it is --poll_seconds now",
    "launch.logs": "`bigbird-ja logs NAME`",
    "export.parity_sequences": "with --data_dir held-out records are compared",
    "fill-mask.file": "it is --input now",
    "down.dry_run": "`status --project` shows what would be deleted",
    **dict.fromkeys(("down.zones", "status.zones"), "every zone is listed"),
    "down.timeout_minutes": _FIXED,
    "preflight.cache": "--output keeps the results",
    "preflight.machine_code": "it is counted wherever it can be",
    "preflight.timeout_minutes": "a compilation has an hour",
    "pretrain.continue_with": "--set training.KEY=VALUE does so on a run that goes on",
    "status.events": "the run's model/events.jsonl has them",
    "plan.tokens": _BY_STEPS,
    "plan.mfu": "--preflight gives rates of the compiler",
    "plan.zones": "each machine is priced in its cheapest zone",
    "plan.bucket_region": "`launch` warns of traffic between regions",
    "prices": "it is --price_file now",
    **dict.fromkeys(("plan.finish_by", "plan.max_cost", "plan.plot"), "the table has all machines"),
    **dict.fromkeys(("probe", "probe_input", "probe_names", "probe_cases"), "scripts.probe has it"),
    **dict.fromkeys(("coordinator_address", "num_processes", "process_id"), _PODS),
    **dict.fromkeys(("restart_minutes", "absent_minutes", "save_seconds"), _FIXED),
    **dict.fromkeys(("stall_minutes", "startup_minutes"), _FIXED),
}


def answer(command: str, flag: str) -> str:
    """Word what serves in place of a flag; empty where nothing is known of it."""
    return _ANSWERS.get(f"{command}.{flag}") or _ANSWERS.get(flag, "")
