"""Supervised runs on a simulated cloud have exactly the events that stories/NAME.txt record.

In each file, the part above the line `---` is YAML. It describes the acts of the service, the
bucket and the user (see `live`). The part below the line contains every event with its time and
fields, the last state, and a summary of the rentals. `python -m tests.launch.test_decide` rewrites
the lower parts. A diff of the files then shows how the supervisor's behavior has changed.
"""

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import pytest
import yaml

from bigbird_ja.errors import Refused, StorageError
from bigbird_ja.launch import account, decide
from bigbird_ja.launch.decide import is_refused_everywhere
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.state import Ending, Phase, RunState
from bigbird_ja.launch.supervise import Detached, Event, Stop, describe
from testkit.simulated_cloud import START, SimulatedCloud
from tests.launch import support
from tests.launch.support import RECORD, TRAINER, lifetimes, supervised

HOUR = 3600.0
STORIES = sorted(Path(__file__).parent.glob("stories/*.txt"))
FAULTS = {
    "403": PermissionError(13, "permission denied (403)", "gs://b/run/supervisor/lock.json"),
    "no credentials": Refused("no credentials"),
    "fails": StorageError("the bucket fails"),
    **{kind.value: ServiceFault(kind, "scripted") for kind in Kind},
}


def words(text):
    """Split the outcomes in a story into words. `quota*3` stands for `quota quota quota`."""
    pairs = [word.partition("*") for word in text.split()]
    return [word for word, _, times in pairs for _ in range(int(times or 1))]


def live(story):
    """Simulate a story, and return its events, its last state and its rentals as lines.

    Args:
        story: a dict with these keys, which are optional.
            hours: lifetimes of the first machines in hours. The others live forever.
            script: outcomes of the requests to create a machine.
            deletions: outcomes of the requests to delete a machine.
            run: changed fields of `LaunchedRun`.
            cloud: changed fields of `SimulatedCloud`.
            constants: changed constants of `launch`.
            fails: faults as [act or acts, zone or "" for all, first hour, last hour, key of
                FAULTS].
            stop: hour at which the user presses Ctrl-C and deletes the machine.
            detach: hour at which the user presses Ctrl-C and detaches.
            happens: events as [hour, kind, hours]. The kind is "nap" (the supervisor sleeps for
                these hours), "clock" (the wall clock jumps by these hours) or "repair" (the machine
                is repaired for these hours).
            then: further launches, each with its own `run`, `cloud`, `stop`, `detach` and
                `happens`, after a `pause` of hours.
    """
    constants = {"SERVICE_TIMEOUT": decide, "MAX_LIFETIME": account}
    with contextlib.ExitStack() as stack:
        for name, value in story.get("constants", {}).items():
            stack.enter_context(mock.patch.object(constants[name], name, value))
        return _live(story)


def _live(story):
    get = story.get
    record = _changed(RECORD, story)
    trainer = replace(TRAINER, target_step=record.target_step)
    cloud = SimulatedCloud(trainer, lifetimes(*get("hours", ())), **get("cloud", {}))
    cloud.script, cloud.delete_script = words(get("script", "")), words(get("deletions", ""))
    fails, launches = get("fails", ()), (story, *get("then", ()))

    def interfere(act, zone):
        assert act != "create" or cloud.state["phase"] == "creating", (
            "stored before it is requested"
        )
        for acts, where, start, end, fault in fails:
            if act in acts and where in ("", zone) and start <= cloud.now / HOUR < end:
                raise FAULTS[fault]

    cloud.interfere = interfere
    hours = [hour for fault in fails for hour in fault[2:4]]
    hours += [launch[key] for launch in launches for key in ("stop", "detach") if key in launch]
    cloud.wake = [HOUR * hour for hour in hours]
    lines, state = _launched(cloud, record, story)
    for launch in launches[1:]:
        cloud.advance(cloud.now + HOUR * launch.get("pause", 0))
        vars(cloud).update(launch.get("cloud", {}))
        record = _changed(record, launch)
        more, state = _launched(cloud, record, launch)
        lines += more
    first = msgspec.to_builtins(RunState())
    lines += [f"{key}: {value}" for key, value in state.items() if value != first[key]]
    assert {(line["source"], line["run"]) for line in cloud.events} == {("supervisor", "run")}
    assert not cloud.foreign_touched
    cloud.advance(cloud.now + 13 * HOUR)
    rented = f"{cloud.rented_seconds / HOUR:.2f} hours of {cloud.creations} machines"
    return [*lines, f"{rented}, {cloud.most_at_once} at once; 13 hours later {len(cloud.nodes)}"]


def _changed(record, launch):
    changes = launch.get("run", {})
    return replace(
        record, **{k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
    )


def _launched(cloud, record, launch):
    """Supervise until the run ends or the user detaches, and return the events and the state."""
    count, said, coming = len(cloud.events), [], [*launch.get("happens", ())]

    def sleep(seconds):
        while coming and coming[0][0] * HOUR <= cloud.now:
            _, what, hours = coming.pop(0)
            seconds += HOUR * hours if what == "nap" else 0.0
            cloud.wall_offset += HOUR * hours if what == "clock" else 0.0
            if what == "repair":
                cloud.nodes[0].ready_at = cloud.now + HOUR * hours
        cloud.sleep(seconds)

    def ctrl_c():
        for answer, key in ((Stop.DELETE, "stop"), (Stop.DETACH, "detach")):
            if cloud.now >= HOUR * launch.get(key, math.inf):
                return answer
        return Stop.NO

    how = {"project": record.project, "sleep": sleep, "stop": ctrl_c, "log": said.append}
    try:
        state = msgspec.to_builtins(supervised(cloud, record, **how))
    except Detached:
        state = cloud.state
    events = [f"{line['time'] - START:.0f} {describe(_of_line(line))}" for line in cloud.events]
    return [*([f"again: {said[0]}"] if count else []), *events[count:]], state


def _of_line(line):
    hidden = ("event", "time", "source", "run")
    return Event(line["event"], {k: v for k, v in line.items() if k not in hidden})


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_run_has_exactly_the_recorded_events(path):
    happens, _, follows = path.read_text(encoding="utf-8").partition("---\n")
    assert "\n".join(live(yaml.safe_load(happens))).splitlines() == follows.splitlines()


if __name__ == "__main__":
    for path in STORIES:
        happens = path.read_text(encoding="utf-8").partition("---\n")[0]
        text = "\n".join(live(yaml.safe_load(happens)))
        path.write_text(f"{happens}---\n{text}\n", encoding="utf-8")


def test_a_run_that_never_had_quota_is_distinguished_from_one_that_had():
    run = support.vm_of("run-1", zones=("a", "b"))
    state = RunState(Phase.ENDED, ending=Ending.GAVE_UP, excluded_zones={"a": "x", "b": "x"})
    assert is_refused_everywhere(state, run)
    assert not is_refused_everywhere(replace(state, ready_zones=("a",)), run)
    assert not is_refused_everywhere(replace(state, excluded_zones={"a": "x"}), run)
