"""Count the files that a reader opens on a road through the package, from imports and calls.

    python -m scripts.roads [TREE]    # prints each road's files, of this checkout or another

A road is a few stretches, each from one function to stations, functions that it leads to. To each
the shortest way of calls is taken, through the fewest files, and every file on it counts once. What
is called on the way and leads to no station (errors, logs, paths, types) is left out by that rule.
`scripts/calls.py` finds the calls.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from scripts.calls import PACKAGE as PACKAGE
from scripts.calls import Code
from testkit import ROOT

# Road -> the most files that it may have, and its stretches: where one begins, and its stations. A
# name is the end of "bigbird_ja.module:Class.method" that only one has.
Stretch = tuple[str, str]
ROADS: dict[str, tuple[int, tuple[Stretch, ...]]] = {
    "a record to the device": (14, (
        ("make_data:run", "file_source:_lines SentencePieceTokenizer.encode_arrays"
         " ScriptMarker.__call__ packing:pack tfrecords:frame manifest:to_json"),
        ("pretrain:run", "parse_dynamic start_of_reader mask_arrays PjrtEngine._place_batch"),
    )),
    "a step from flags to the compiled program": (20, (
        ("pretrain:run", "resolve_config hosts:joined engines:choose engines:check"
         " PjrtEngine._compile"),
        # From there, since other commands and the other engine lead to the model as well.
        ("PjrtEngine._compile", "optimizer:update muon_directions forward_kernel:forward call_jax"
         " as_jax_function make_step layers:dense layers:dropout random_plan tiled_attention"
         " parameter_specs division_of"),
    )),
    "a checkpoint to its resume": (8, (
        ("engines:first_state", "read_variables"),
        ("train.train:train", "CheckpointStore.publish EventLog.append Owned.note"),
        ("pretrain:run", "CheckpointStore.latest_good engines:first_state RunDir.locked"
         " RunDir.check_settings pjrt:place Lease.acquire DataGuard.check"),
    )),
    "a launched machine to its deletion": (11, (
        ("commands.launch:run", "RunFiles.save_run startup:metadata TpuNodes.create TpuNodes.delete"
         " decide:decide outcomes:create outcomes:delete Lease.renew"
         " RunFiles.save_state"),
        ("TpuNodes.delete", "Rest.call"),
        ("watcher:main", "watcher:Host.delete"),
    )),
}  # fmt: skip


def files(code: Code, stretches: Iterable[Stretch]) -> list[str]:
    """Return the files of a road, as paths in the package.

    Raises:
        LookupError: a station has another name now, or the road does not lead to it.
    """
    road = {
        name
        for start, stations in stretches
        for station in stations.split()
        for name in code.way(code.named(start), code.named(station))
    }
    return sorted({code.files[name.partition(":")[0]] for name in road})


def main() -> int:
    """Print the roads; return 1 where a station was not found."""
    code = Code(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    status = 0
    for name, (most, stretches) in ROADS.items():
        try:
            names = files(code, stretches)
            print(f"{name}: {len(names)} files (at most {most}): {', '.join(names)}")
        except LookupError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
