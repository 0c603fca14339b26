"""Processes of a pod as threads of one: how they meet, agree, and hear of each other's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bigbird_ja.process.errors import BadInput, CommandError, Diverged, Interrupted, Stalled
from bigbird_ja.train.pods.meeting import Meeting
from bigbird_ja.train.pods.place import Place
from bigbird_ja.train.pods.pod import Pod
from testkit.pods import free_address

CARD = {"version": "1", "settings": {"model.num_layers": "2"}, "MODEL_DIR": "gs://b/m"}


class Member:
    """One process."""

    def __init__(self, place: Place, card: dict[str, Any], seconds: float = 60.0) -> None:
        self.asked: list[str] = []
        self.left: list[CommandError] = []
        self.meeting = Meeting(place, card, seconds, lambda: False)
        self.pod = Pod(
            place, self.meeting, print, self.asked.append, self._leave, lambda pod, name: None
        )

    def _leave(self, error: CommandError) -> None:
        self.left.append(error)
        self.pod.fail(error.reason, str(error))

    def join(self) -> Member:
        self.meeting.meet()
        self.pod.start()
        return self


def together(do: list[Callable[[], Any]]) -> list[Any]:
    """Each in a thread; what it returns or raises."""

    def outcome(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except CommandError as error:
            return error

    with ThreadPoolExecutor(len(do)) as threads:
        return list(threads.map(outcome, do))


def meet(count: int) -> list[Member]:
    address = free_address()
    return together([Member(Place(i, count, address), CARD).join for i in range(count)])


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def finish(members: list[Member]) -> None:
    together([member.pod.finish for member in members])


def outcomes(places: list[Place], cards: list[dict[str, Any]], seconds: float = 60.0) -> list[str]:
    """What each says who is refused; they come one after the other."""
    members = [Member(p, c, seconds) for p, c in zip(places, cards, strict=True)]
    gate = [threading.Event() for _ in members]
    for event in gate[:1]:
        event.set()

    def join(number: int) -> Any:
        gate[number].wait(60)
        if number + 1 < len(members):
            threading.Timer(0.2, gate[number + 1].set).start()
        return members[number].join()

    found = together([lambda n=n: join(n) for n in range(len(members))])
    return [str(each) if isinstance(each, BadInput) else repr(each) for each in found]


def test_all_stop_at_one_step_that_none_has_passed() -> None:
    members = meet(3)
    reaches = [4, 6, 5]
    for member, reach in zip(members, reaches, strict=True):
        assert member.pod.turn(reach - 3, 100, 3) == 100
        assert not member.pod.stops_at(reach, True)
    members[2].pod.ask("stop", "SIGTERM in process 2")
    until(lambda: all(m.pod.agreed("stop") for m in members))
    assert {m.pod.agreed("stop") for m in members} == {7}
    assert [m.pod.turn(5, 100, 3) for m in members] == [7, 7, 7]
    assert not members[0].pod.stops_at(6, True) and members[0].pod.stops_at(7, False)
    until(lambda: all("SIGTERM in process 2" in m.asked for m in members[:2]))
    finish(members)
    assert not any(m.left for m in members)


def test_saves_are_agreed_on_again_and_again_until_the_stop() -> None:
    members = meet(2)
    for number in range(1, 4):
        for member in members:
            member.pod.turn(number * 10, 100, 3)
        members[0].pod.ask("save")
        until(lambda n=number: all((m.pod.agreed("save") or 0) > n * 10 for m in members))
        assert {m.pod.agreed("save") for m in members} == {number * 10 + 4}
    members[0].pod.ask("save")
    members[1].pod.ask("stop", "x")
    until(lambda: all(m.pod.agreed("stop") for m in members))
    assert len({m.pod.agreed("stop") for m in members}) == 1
    finish(members)


def test_before_the_first_step_all_stop_where_they_start() -> None:
    members = meet(2)
    members[1].pod.ask("stop", "x")
    until(lambda: all(m.pod.agreed("stop") is not None for m in members))
    assert all(m.pod.stops_at(0, False) for m in members)
    finish(members)


def test_what_the_writer_makes_and_what_all_have() -> None:
    members = meet(3)

    def work(member: Member) -> Any:
        value = member.pod.share("start", lambda: {"step": member.pod.index + 40})
        member.pod.barrier("ready")
        own = {"loss": np.full(2, float(member.pod.index), np.float32)}
        return value, member.pod.collect("evaluation 1", own, lambda: None)

    found = together([lambda m=m: work(m) for m in members])
    assert [value for value, _ in found] == [{"step": 40}] * 3
    assert [arrays for _, arrays in found[1:]] == [None, None]
    assert np.concatenate([part["loss"] for part in found[0][1]]).tolist() == [0, 0, 1, 1, 2, 2]
    finish(members)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_gone_ends_all_others(lost: int) -> None:
    members = meet(3)
    for link in members[lost].meeting.links.values():
        link.close()
    others = [m for m in members if m is not members[lost]]
    until(lambda: all(m.left for m in others))
    assert all(isinstance(m.left[0], Stalled) for m in others)
    assert all(f"process {lost} " in str(m.left[0]) for m in others)
    assert all("run the same command again" in str(m.left[0]) for m in others)


@pytest.mark.parametrize(
    ("reason", "kind"), [("diverged", Diverged), ("interrupted", Interrupted), ("bug", Stalled)]
)
def test_all_end_for_the_reason_of_one(reason: str, kind: type) -> None:
    members = meet(3)
    members[1].pod.fail(reason, "step 7: it went wrong")
    until(lambda: members[0].left and members[2].left)
    for number in (0, 2):
        assert isinstance(members[number].left[0], kind)
        assert "it went wrong" in str(members[number].left[0])


def test_news_reach_a_main_thread_that_waits_for_the_others() -> None:
    address = free_address()
    writer = Member(Place(0, 2, address), CARD)
    other = Member(Place(1, 2, address), CARD)
    together([writer.join, other.join])
    threading.Timer(0.2, other.pod.fail, ("bad_input", "disk: cannot be read")).start()
    with pytest.raises(BadInput, match=r"process 1 .*disk: cannot be read"):
        writer.pod.barrier("ready")
    assert not writer.left


def test_a_process_that_never_comes() -> None:
    address = free_address()
    places = [Place(0, 3, address), Place(1, 3, address)]
    found = outcomes(places, [CARD, CARD], seconds=1.5)
    assert all("process 2 of 3 did not come within 2 s" in words for words in found), found
    (words,) = outcomes([Place(1, 2, free_address())], [CARD], seconds=0.5)
    assert "no process 0 there" in words and "check the address" in words


def test_an_id_twice_a_count_and_a_card_that_differ_are_told_to_all() -> None:
    address = free_address()
    twice = outcomes([Place(i, 3, address) for i in (0, 1, 1)], [CARD] * 3)
    assert all("have the same --process_id" in words for words in twice), twice
    address = free_address()
    count = outcomes([Place(0, 3, address), Place(1, 4, address)], [CARD] * 2)
    assert all("4 processes, and process 0 3" in words for words in count), count
    for name, value, words in [
        ("settings", {"model.num_layers": "4"}, "model.num_layers=4"),
        ("MODEL_DIR", "gs://b/other", "gs://b/other"),
        ("version", "2", "install the same bigbird-ja"),
    ]:
        address = free_address()
        cards = [CARD, {**CARD, name: value}]
        found = outcomes([Place(0, 2, address), Place(1, 2, address)], cards)
        assert all(words in line and "process 1 on" in line for line in found), found


def test_a_latecomer_is_refused_and_the_pod_goes_on() -> None:
    address = free_address()
    members = together([Member(Place(i, 2, address), CARD).join for i in range(2)])
    (words,) = outcomes([Place(1, 2, address)], [CARD])
    assert "a process too many" in words
    members[1].pod.ask("stop", "x")
    until(lambda: members[0].pod.agreed("stop") is not None)
    finish(members)
    assert not members[0].left and not members[1].left


def test_two_writers_at_one_address() -> None:
    address = free_address()
    members = together([Member(Place(i, 2, address), CARD).join for i in range(2)])
    (words,) = outcomes([Place(0, 2, address)], [CARD])
    assert "another process 0 may be at work" in words
    finish(members)


def test_a_pod_that_ends_at_once_refuses_nobody_and_says_nothing() -> None:
    meeting = Meeting(Place(0, 2, free_address()), CARD, 5.0, lambda: False)
    meeting._listener = meeting._listen()
    meeting.close()
    meeting._refuse()
