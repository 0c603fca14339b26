"""Both services as one, and the deletion of what was shown, in virtual time."""

from dataclasses import replace

import pytest

from bigbird_ja.launch.backends import Everywhere, delete_all, engine_on
from bigbird_ja.launch.record import ID_LABEL, Presence, Tpu
from bigbird_ja.launch.rest import Kind, ServiceFault

TPU = Tpu(
    "a", "z", Presence.READY, "READY", labels={ID_LABEL: "id-a"}, created=1.0, resource="p/z/a"
)
GOING = replace(TPU, presence=Presence.DELETING)
AWAY = ServiceFault(Kind.UNAVAILABLE, "no answer")


class Scripted:
    """A service that shows one listing after the other, the last one for ever."""

    def __init__(self, *listings, fails=()):
        self.listings, self.fails = list(listings), list(fails)
        self.deleted = []
        self.pauses = []

    def list(self, zone):
        shown = self.listings.pop(0) if self.listings[1:] else self.listings[0]
        if isinstance(shown, ServiceFault):
            raise shown
        return [tpu for tpu in shown if zone in (tpu.zone, "-")]

    def delete(self, tpu):
        self.deleted.append(tpu.resource)
        if self.fails:
            raise ServiceFault(self.fails.pop(0), "refused")
        return "operation"

    def zones(self):
        raise AWAY

    def time(self):
        raise AWAY


def delete(service, *tpus, timeout=1e6):
    everywhere = Everywhere({"tpu": service})  # type: ignore[dict-item]
    pauses = service.pauses
    return delete_all(everywhere, tpus, timeout, lambda: sum(pauses), pauses.append)


def test_a_deletion_is_over_when_two_looks_in_a_row_show_nothing(capsys):
    listings = ([TPU], [GOING], [], [GOING], AWAY, [], [])
    service = Scripted(*listings, fails=[Kind.PERMISSION])
    assert delete(service, TPU) == [] and service.listings == [[]]
    assert service.deleted == [TPU.resource] * 2  # the first was refused; then it was on its way
    assert service.pauses == [1.5**n for n in range(7)]
    logged = capsys.readouterr().err
    assert logged == f"{TPU.resource}: permission: refused\nz: unavailable: no answer\n"


def test_what_was_not_seen_once_is_not_asked_for_again_before_it_is_shown(capsys):
    service = Scripted([], [TPU], [], [], fails=[Kind.NOT_FOUND])
    assert delete(service, TPU) == [] and len(service.deleted) == 2
    assert capsys.readouterr().err == ""  # that it is gone is no fault


def test_another_of_its_name_is_left_and_each_zone_is_waited_for():
    other, far = replace(TPU, created=2.0), replace(TPU, zone="y", resource="p/y/a")
    service = Scripted([other, far])
    assert delete(service, TPU, far, timeout=60.0) == [far.resource]
    assert service.deleted.count(TPU.resource) == 1 and service.deleted.count(far.resource) > 5
    assert service.pauses[6:] == [11.390625, 15.0, 15.0] and sum(service.pauses) > 60.0
    assert delete(Scripted([TPU]), TPU, timeout=0.0) == [TPU.resource]


def test_a_service_that_does_not_answer_hides_nothing_of_the_other():
    away = ServiceFault(Kind.INTERNAL, "half an answer", [GOING])
    both = Everywhere({"tpu": Scripted(away), "compute": Scripted([TPU])})  # type: ignore[dict-item]
    with pytest.raises(ServiceFault, match="half an answer") as caught:
        both.list("z")
    assert (caught.value.kind, [*caught.value.listed]) == (Kind.INTERNAL, [GOING, TPU])
    with pytest.raises(ServiceFault, match="no answer"):
        both.time()
    both.check_zones(["-"])  # nobody named a zone: nobody is asked
    with pytest.raises(ServiceFault, match="no answer"):
        both.check_zones(["z"])


def test_the_engine_follows_from_the_machine_unless_it_is_given():
    assert [engine_on(kind, "auto") for kind in ("v2-8", "v3-8", "v4-8", "v6e-8")] == [
        "estimator", "estimator", "pjrt", "pjrt",
    ]  # fmt: skip
    assert engine_on("v3-8", "pjrt") == "pjrt"
