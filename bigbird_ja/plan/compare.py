"""Comparison of a run's measured rate with the rate that `plan` predicts for its machine."""

import re

from bigbird_ja import storage
from bigbird_ja.accelerators.chips import Accelerator, build_slice
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.plan.estimate import Plan, estimate_rate
from bigbird_ja.settings.config_file import read_config
from bigbird_ja.train.engines.devices import CHIP_OF_KIND

# Chips with two devices each.
_HALVES = ("v2", "v3", "v7x")


def describe_rate(model_dir: str, manifest: Manifest) -> str | None:
    """Compare the rate of a run's last logged steps with the prediction of `plan`.

    Args:
        model_dir: folder of the run.
        manifest: manifest of the run's data set.

    Returns:
        One line, in which the rates count all positions of a sequence, including padding. None if
        no step is logged or `plan` does not know the machine.
    """
    metrics, events = run_log.read_metrics(model_dir), run_log.read_events(model_dir)
    devices = [e["environment"].get("device", "") for e in events if e.get("environment")]
    machine = _parse_machine(devices[-1]) if devices else None
    rate = metrics[-1]["tokens_per_second"] if metrics else None
    if machine is None or rate is None:
        return None
    measured = rate / manifest.density
    config, _ = read_config(storage.join(model_dir, "config.yaml"))
    planned = estimate_rate(machine, Plan(config, manifest))
    slow, fast = (planned.tokens_per_second / end for end in (planned.slower, planned.faster))
    return (
        f"measured {measured / 1e3:,.0f} k tokens/s (positions) at step {metrics[-1]['step']:,};"
        f" `plan` predicts {planned.tokens_per_second / 1e3:,.0f} k ({slow / 1e3:,.0f} to"
        f" {fast / 1e3:,.0f}) for a {machine.name}"
    )


def _parse_machine(devices: str) -> Accelerator | None:
    """Return the slice in a description such as `8 x TPU v5 lite`, or None for other devices."""
    match = re.fullmatch(r"(\d+) x (.+)", devices)
    chip = CHIP_OF_KIND.get(match[2]) if match else None
    if match is None or chip is None:
        return None
    return build_slice(chip, max(1, int(match[1]) // (2 if chip in _HALVES else 1)))
