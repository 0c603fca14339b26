"""Logs to Weights & Biases (`pretrain` with `wandb`)."""

from collections.abc import Callable, Mapping
from typing import Any


class WandbLog:
    """Log of a run on Weights & Biases, which continues after a restart.

    A failure is logged and does not end training. After a failure nothing more is sent.

    Args:
        library: the wandb package.
        run_id: identifier of MODEL_DIR, which is different for a copy at another path.
        name: displayed name, the last part of MODEL_DIR.
        settings: settings of the run, without credentials.
        log: callback for failures.
    """

    def __init__(
        self,
        library: Any,
        run_id: str,
        name: str,
        settings: Mapping[str, Any],
        log: Callable[[str], None],
    ) -> None:
        self._log, self._failed = log, False
        about = {"project": "bigbird-ja", "id": run_id, "name": name, "resume": "allow"}
        # The program's output, its code and the address of its repository are not sent.
        private = {"console": "off", "disable_git": True, "disable_code": True}
        self._run = self._try(lambda: library.init(**about, config=settings, settings=private))

    def write(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """Send each number in `values` under the name `prefix/key`."""
        numbers = {f"{prefix}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
        self._try(lambda: self._run.log(numbers, step=step))

    def close(self) -> None:
        """Finish the run on Weights & Biases."""
        self._try(lambda: self._run.finish())

    def _try(self, act: Callable[[], Any]) -> Any:
        if self._failed:
            return None
        try:
            return act()
        except Exception as failure:
            self._failed = True
            self._log(f"nothing more of this run is sent to Weights & Biases: {failure}")
