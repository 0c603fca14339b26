"""Machines of the Cloud TPU API and Compute Engine are listed and deleted, in virtual time."""

from dataclasses import replace

from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.launch.leftovers import Listing, delete_all, list_ours
from bigbird_ja.launch.rest import Kind, ServiceFault
from bigbird_ja.launch.service import ID_LABEL, Presence, Tpu

PLACE = {"resource": "p/z/a", "project": "p", "created": 1.0}
TPU = Tpu("a", "z", Presence.READY, "READY", labels={ID_LABEL: "id-a"}, **PLACE)
GOING = replace(TPU, presence=Presence.DELETING)
AWAY = ServiceFault(Kind.UNAVAILABLE, "no answer")
OFF = ServiceFault(Kind.PERMISSION, "the API has not been used in project p")


class Scripted:
    """Fake service that returns the given answers in order, and repeats the last one forever."""

    def __init__(self, *looks, fails=()):
        self.looks, self.fails = list(looks), list(fails)
        self.deleted: list[str] = []
        self.pauses: list[float] = []

    def list(self):
        return self.find("", "")

    def find(self, zone, name):
        shown = self.looks.pop(0) if self.looks[1:] else self.looks[0]
        if isinstance(shown, ServiceFault):
            raise shown
        return shown

    def delete(self, tpu):
        self.deleted.append(tpu.resource)
        if self.fails:
            raise ServiceFault(self.fails.pop(0), "refused")

    def time(self):
        return 7.0


def delete(service, timeout=1e6):
    return delete_all(
        {("tpu", "p"): service}, [TPU], timeout, lambda: sum(service.pauses), service.pauses.append
    )


def test_a_deletion_is_complete_when_two_polls_in_a_row_show_nothing(caplog):
    looks = (TPU, TPU, GOING, None, GOING, AWAY, None, None)
    service = Scripted(*looks, fails=[Kind.PERMISSION])
    assert delete(service) == [] and service.looks == [None]
    # The service refused the first deletion request and accepted the second one.
    assert service.deleted == [TPU.resource] * 2
    assert service.pauses == [1.5**n for n in range(7)]
    faults = ("permission: refused", "unavailable: no answer")
    assert caplog.messages == [f"{TPU.resource}: {fault}" for fault in faults]


def test_another_machine_of_its_name_is_left_and_the_timeout_holds():
    other = Scripted(replace(TPU, created=2.0))
    assert delete(other) == [] and other.deleted == []
    stays = Scripted(TPU)
    assert delete(stays, timeout=60.0) == [TPU.resource] and len(stays.deleted) > 5
    assert stays.pauses[6:] == [11.390625, 15.0, 15.0] and sum(stays.pauses) > 60.0
    assert delete(Scripted(TPU), timeout=0.0) == [TPU.resource]


def test_a_service_that_does_not_answer_hides_nothing_of_the_other():
    foreign = replace(TPU, labels={})
    half = ServiceFault(Kind.INTERNAL, "half an answer", [GOING, foreign])
    listing = list_ours({("tpu", "p"): Scripted(half), ("compute", "p"): Scripted([TPU])})
    assert (listing.tpus, listing.now) == ((GOING, TPU), 7.0)
    assert isinstance(listing.fault, StorageError)
    assert "half an answer), and may contain machines" in str(listing.fault)
    # A disabled service has no machines. `list_ours` reports a fault only if all are disabled.
    clients = {("tpu", "p"): Scripted(OFF), ("compute", "p"): Scripted([TPU])}
    assert list_ours(clients) == Listing((TPU,), 7.0)
    fault = list_ours({("tpu", "p"): Scripted(OFF)}).fault
    assert isinstance(fault, BadInput) and "gcloud services enable" in str(fault)
