"""Weights & Biases, if it is installed and asked for (`pretrain --wandb`); never otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import flatten


def load_library() -> Any:
    """The wandb package.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        raise BadInput("--wandb needs the package: pip install wandb") from error
    return wandb


class WandbLog:
    """One run there, continued under the same name after a restart.

    What fails here is said once and then left alone: training does not end over a log.

    Args:
        library: the wandb package.
        name: of the run, the last part of MODEL_DIR.
        config: shown beside the curves; it holds no credentials.
        log: told of a failure.
    """

    def __init__(self, library: Any, name: str, config: Config, log: Callable[[str], None]) -> None:
        self._log, self._run = log, None
        try:
            self._run = library.init(
                project="bigbird-ja",
                id=name,
                name=name,
                resume="allow",
                config=flatten(config),
            )
        except Exception as failure:
            self._give_up(failure)

    def write(self, step: int, values: Mapping[str, Any], prefix: str) -> None:
        """The numbers among `values`, as `prefix/key`."""
        if self._run is None:
            return
        numbers = {f"{prefix}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
        try:
            self._run.log(numbers, step=step)
        except Exception as failure:
            self._give_up(failure)

    def close(self) -> None:
        """Ends the run there."""
        if self._run is not None:
            try:
                self._run.finish()
            except Exception as failure:
                self._give_up(failure)

    def _give_up(self, failure: Exception) -> None:
        self._run = None
        self._log(f"Weights & Biases is left out from here on: {failure}")
