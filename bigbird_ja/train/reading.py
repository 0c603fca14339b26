"""What a run reads: its part of the data's order, masked at the rate of its own steps."""

from __future__ import annotations

from typing import Any

from bigbird_ja.data import pipeline
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.masking import MaskRate
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import first_phase, mask_rates, train_predictions


def batches(
    config: Config,
    manifest: Manifest,
    data_dir: str,
    *,
    start_step: int = 0,
    first_step: int | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
    in_first_phase: bool = False,
) -> Any:
    """`data.pipeline.batches` as a run with this config reads them.

    Args:
        config: completed by the manifest.
        manifest, data_dir: the data set.
        start_step: the number of the first batch.
        first_step: of the run, that it is for; after a change of batch size the two differ.
        num_hosts, host_index: whose part.
        in_first_phase: cut to `training.first_seq_length`.
    """
    phase = first_phase(config) if in_first_phase else None
    rates = mask_rates(config)
    return pipeline.batches(
        manifest,
        data_dir,
        seed=config.data.seed,
        global_batch_size=config.training.global_batch_size,
        start_step=start_step,
        first_step=first_step,
        shuffle_window=config.data.shuffle_window,
        mask_unit=config.data.mask_unit,
        mask_rate=MaskRate(*rates) if rates else None,
        max_predictions=train_predictions(phase or config),
        seq_length=phase.make_data.seq_length if phase else None,
        num_hosts=num_hosts,
        host_index=host_index,
    )
