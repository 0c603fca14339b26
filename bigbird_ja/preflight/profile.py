"""Sets the time that each op took, in a profile of `pretrain`, beside what was predicted."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bigbird_ja import storage
from bigbird_ja.preflight import figures
from bigbird_ja.preflight.costs import Cost
from bigbird_ja.preflight.roofline import CodeCost
from bigbird_ja.process.console import table
from bigbird_ja.process.errors import BadInput

_NAME = re.compile(r"%?([\w.\-]+)")  # of an event, which may be named by the whole instruction
_MOST_BYTES = 2 << 30
_SHOWN = 15
INPUT = "input"  # an event of the pjrt engine: the host waits for the next batch


def op_seconds(folder: str) -> dict[str, float]:
    """Return the mean seconds of one run of each op, by HLO name, on one device; and of `INPUT`.

    Args:
        folder: MODEL_DIR, or one with a profile in it; of several runs the newest counts.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    names = sorted(name for name in storage.list_tree(folder) if name.endswith(".xplane.pb"))
    if not names:
        advice = "name the MODEL_DIR of a run with --profile_steps"
        raise BadInput(f"--profile {folder}: no *.xplane.pb in it: {advice}")
    path = storage.join(folder, names[-1])
    try:
        space = xplane_pb2.XSpace.FromString(storage.read_bytes(path, _MOST_BYTES))
    except DecodeError as error:
        raise BadInput(f"--profile {path}: no profile, or a damaged one") from error
    devices = [plane for plane in space.planes if plane.name.startswith("/device:TPU:")]
    times: dict[str, list[int]] = defaultdict(list)
    for plane in [p for p in space.planes if p not in devices[1:]]:
        for line in plane.lines:
            is_device = (plane in devices and line.name == "XLA Ops") or not devices
            for event in line.events:
                match = _NAME.match(plane.event_metadata[event.metadata_id].name)
                if match and (is_device or match[1] == INPUT):
                    times[match[1]].append(event.duration_ps)
    return {name: sum(each) / len(each) / 1e12 for name, each in times.items()}


def compare(
    costs: Sequence[Cost], code: Sequence[CodeCost], seconds: Mapping[str, float], clock_hz: float
) -> dict[str, Any]:
    """Return the ops of a step that a profile has, the same op of all layers taken together.

    Args:
        costs: of the step.
        code: of the same costs, where there is machine code: then it predicts.
        seconds: as of `op_seconds`.
        clock_hz: of the chip.

    Returns:
        `matched` of `ops`; `measured_ms` and `predicted_ms` of a step in those that are matched;
        `by_op`, the longest first.
    """
    groups: dict[str, dict[str, Any]] = {}
    matched = 0
    predictions: Sequence[Cost | CodeCost] = code or costs
    for cost, predicted in zip(costs, predictions, strict=True):
        if (took := seconds.get(cost.instruction.name)) is None:
            continue
        matched += 1
        name = figures.generic_name(cost)
        one = groups.setdefault(name, {"op": name, "count": 0, "measured_ms": 0, "predicted_ms": 0})
        one["count"] += cost.trips
        one["measured_ms"] += took * cost.trips * 1e3
        one["predicted_ms"] += predicted.cycles / clock_hz * 1e3
    ops = sorted(groups.values(), key=lambda op: -op["measured_ms"])
    sums = {key: sum(op[key] for op in ops) for key in ("measured_ms", "predicted_ms")}
    return {"ops": len(costs), "matched": matched, **sums, "by_op": ops}


def describe(found: Mapping[str, Any]) -> str:
    """Write a comparison for people."""
    rows = [
        [op["op"][-70:], op["count"], f"{op['measured_ms']:.3f}", f"{op['predicted_ms']:.3f}"]
        for op in found["by_op"][:_SHOWN]
    ]
    return (
        f"profile: {found['measured_ms']:.2f} ms a step in {found['matched']:,} of"
        f" {found['ops']:,} ops, matched by name; predicted {found['predicted_ms']:.2f} ms\n\n"
        + table(rows, ["longest ops", "times", "measured ms", "predicted ms"])
    )
