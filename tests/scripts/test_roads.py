"""The roads that `make size` counts, from imports and calls."""

import pytest

from scripts import roads
from testkit import ROOT

SOURCES = {
    "a": "from bigbird_ja.b import make\nfrom bigbird_ja import log\n\n"
    "def run():\n    log.say()\n    with make() as machine:\n        machine.start(stop)\n\n"
    "def stop():\n    from bigbird_ja.d import end\n    end()\n",
    "b": "from bigbird_ja.c import Api, Service\n\n"
    "class Machine:\n    def __init__(self, api: Api):\n        self._api = api\n\n"
    "    def start(self, act):\n        self._api.rent()\n\n"
    "def make() -> Machine:\n    return Machine(Service())\n",
    "c": "from typing import Protocol\n\nclass Api(Protocol):\n    def rent(self): ...\n\n"
    "class Service:\n    def rent(self):\n        from bigbird_ja.e import request\n"
    "        request()\n",
    "d": "def end(): ...\n",
    "e": "def request(): ...\n",
    "log": "def say(): ...\n",
    "unused": "from bigbird_ja.e import request\n\ndef idle():\n    request()\n",
}


@pytest.fixture
def code(tmp_path):
    (tmp_path / "bigbird_ja").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / f"bigbird_ja/{name}.py").write_text(text)
    return roads.Code(tmp_path)


def test_a_road_goes_through_methods_protocols_and_functions_that_are_passed_on(code):
    assert roads.files(code, [("a:run", "request")]) == ["a.py", "b.py", "c.py", "e.py"]
    assert roads.files(code, [("a:run", "request end")]) == ["a.py", "b.py", "c.py", "d.py", "e.py"]


@pytest.mark.parametrize("end", ["idle", "nothing"])
def test_a_station_that_is_not_on_the_road_is_named(code, end):
    with pytest.raises(LookupError, match=end):
        roads.files(code, [("a:run", end)])


def test_every_station_of_the_package_is_found():
    code = roads.Code(ROOT)
    for most, stretches in roads.ROADS.values():
        assert 3 < len(roads.files(code, stretches)) < 3 * most
