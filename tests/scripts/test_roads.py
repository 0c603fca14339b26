"""The roads that `make size` counts, from imports and calls; those of the package: `docs/tour.md`,
which tests/docs/test_pages.py makes anew."""

import pytest

from scripts import roads

SOURCE = """
def run():
    with make() as machine:
        machine.start()
def make() -> Machine: ...
class Machine:
    def start(self): ...
def idle(): ...
"""


def test_a_road_leads_through_a_with_statement_and_what_is_not_on_it_is_named(tmp_path):
    (tmp_path / "bigbird_ja").mkdir()
    (tmp_path / "bigbird_ja/a.py").write_text(SOURCE)
    code = roads.Code(tmp_path)
    assert [*code.road([{"from": "a:run", "to": "start"}])] == ["a.py"]
    for end in ("idle", "nothing"):
        with pytest.raises(LookupError, match=end):
            code.road([{"from": "a:run", "to": end}])
