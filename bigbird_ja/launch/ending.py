"""How a supervised run's end becomes a command's end."""

from __future__ import annotations

from typing import Any

from bigbird_ja.launch.run_state import RunState
from bigbird_ja.process import errors
from bigbird_ja.process.errors import CommandError

# Reasons of the supervisor's own, as exit statuses know them.
_REASONS = {
    "never_started": errors.Stalled.reason,
    "killed": errors.OutOfMemory.reason,  # SIGKILL on the VM: what Linux does when memory runs out
}


def results_of(state: RunState, model_dir: str) -> dict[str, Any]:
    """The `--json` results."""
    return {
        "name": state.name,
        "state": state.phase.value,
        "ending": state.ending.value if state.ending else None,
        "global_step": max(state.best_step, 0),
        "preemptions": state.preemptions,
        "failures": state.failures,
        "leases_over": state.leases_over,
        "tpu_hours": state.billed_seconds / 3600,
        "hours": state.elapsed_seconds / 3600,
        "cost_usd": state.cost_usd,
        "model_dir": model_dir,
    }


def error_of(state: RunState, results: dict[str, Any]) -> CommandError:
    """The error that ends `launch` for a run that did not finish."""
    reason = _REASONS.get(state.ending_reason, state.ending_reason)
    error = errors.of_reason(reason, f"{state.name}: {state.ending_message}")
    error.results = results
    return error
