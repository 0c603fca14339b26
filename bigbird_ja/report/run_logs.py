"""Logs of the runs that a report shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.settings.config_file import read_config

# A run counts as running if its heartbeat is younger than this number of seconds.
_FRESH_SECONDS = 300.0


class RunLogs:
    """Logs of the run in one MODEL_DIR, and figures computed from them."""

    def __init__(self, model_dir: str, now: float) -> None:
        """Read the logs in `model_dir`. The current time `now` is in UNIX seconds.

        Raises:
            BadInput: The folder contains no files of a run.
        """
        self.name, self.model_dir = storage.get_base_name(model_dir), model_dir
        path = storage.join(model_dir, "config.yaml")
        self.settings = read_config(path) if storage.exists(path) else None
        self.metrics = sorted(run_log.read_metrics(model_dir), key=lambda m: m["step"])
        self.events = sorted(run_log.read_events(model_dir), key=lambda e: e["time"])
        if self.settings is None and not self.metrics and not self.events:
            raise BadInput(
                f"{model_dir} contains no run (no config.yaml, no metrics.jsonl): give the folder"
                " of a run"
            )
        newest = {line["step"]: line for line in run_log.read_evaluations(model_dir)}
        self.evaluations = [newest[step] for step in sorted(newest)]
        self.heartbeat = beat = run_log.read_heartbeat(model_dir)
        self.is_running = (
            beat is not None and beat["state"] != "stopped" and now - beat["time"] < _FRESH_SECONDS
        )

    @property
    def step(self) -> int:
        """Newest step in the metrics or in the heartbeat, or 0 if there is none."""
        logged = self.metrics[-1]["step"] if self.metrics else 0
        return max(logged, self.heartbeat["global_step"] if self.heartbeat else 0)

    @property
    def total_steps(self) -> int | None:
        """Length of the whole run, in steps."""
        if self.heartbeat and (stated := self.heartbeat.get("num_train_steps")):
            return stated
        return self.settings[0].training.num_train_steps if self.settings else None

    @property
    def train_seconds(self) -> float | None:
        """Seconds that were spent in training steps. The model card states the same number."""
        return self.metrics[-1].get("train_seconds") if self.metrics else None

    @property
    def interruptions(self) -> int:
        """Number of starts that ended without finishing the run, as the model card counts them."""
        return run_log.count_unfinished_starts(self.events) - self.is_running

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the last step at the mean rate of training so far."""
        if not self.train_seconds or not self.total_steps or not self.metrics[-1]["step"]:
            return None
        left = self.total_steps - self.step
        return max(0.0, self.train_seconds / self.metrics[-1]["step"] * left)

    @property
    def cost_usd(self) -> float | None:
        """Cost in US dollars from the supervisor of `launch`, or None without a supervisor."""
        return run_log.find_cost_usd(self.events)

    @property
    def newest_evaluation(self) -> Mapping[str, Any]:
        """Evaluation of the newest step that was evaluated, or {} if there is none."""
        return self.evaluations[-1] if self.evaluations else {}

    def count(self, *names: str) -> int:
        """Count the events that have one of these names."""
        return sum(event["event"] in names for event in self.events)


def name_apart(runs: Sequence[RunLogs]) -> None:
    """Name each run by the last parts of its path.

    The number of parts is the smallest with which all names differ. If names are equal even with 8
    parts, it is 1. So the page does not show the first parts of long paths.
    """
    parts = [[part for part in run.model_dir.split("/") if part] for run in runs]
    for length in (*range(1, 9), 1):  # If a run is given twice, names stay equal, and 1 is used.
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(runs):
            break
    for run, name in zip(runs, names, strict=True):
        run.name = name
