"""Settings of how a run is kept and where it trains, declared as those in `schema`."""

from __future__ import annotations

from dataclasses import dataclass

from bigbird_ja.settings.option import LONGEST_RUN, option

_STEPS = LONGEST_RUN


@dataclass
class CheckpointsConfig:
    """Two policies of saving: by time against preemption, by step for keeps."""

    save_every_minutes: float = option(
        10.0, "Time between two checkpoints; 0 is off.", unit="minutes", low=0.0, high=1e6,
        changeable=True,
    )  # fmt: skip
    save_every_steps: int = option(
        5_000, "Steps between two checkpoints; 0 is off.", unit="steps", low=0, high=_STEPS,
        changeable=True,
    )  # fmt: skip
    keep_last: int = option(
        5, "Newest checkpoints to keep.", unit="checkpoints", low=1, high=100_000,
        changeable=True,
    )  # fmt: skip
    keep_every_steps: int = option(
        100_000, "Checkpoints at multiples of this are never removed; 0 is off.", unit="steps",
        low=0, high=_STEPS, changeable=True,
    )  # fmt: skip


@dataclass
class TpuConfig:
    """The machine that trains."""

    num_cores: int = option(
        8, "Cores over which a step's sequences are divided.", unit="cores", low=1, high=4096,
        changeable=True,
    )  # fmt: skip
    name: str = option(
        "local", "Name of the TPU; local: the one of this TPU VM.", changeable=True,
        needs_flag="use_tpu", filled=True,
    )  # fmt: skip
    zone: str | None = option(
        None, "Zone of the TPU.", none="the VM's own", changeable=True, filled=True,
    )  # fmt: skip
    project: str | None = option(
        None, "Google Cloud project of the TPU.", none="the VM's own", changeable=True,
        needs_flag="use_tpu", filled=True,
    )  # fmt: skip
