"""The train step does not become dearer unnoticed: small ones against the record."""

from __future__ import annotations

import json

import pytest

from tests.preflight import small_steps

# More than this over the record fails; change the record in the commit that changes the cost.
MARGIN = 1.05


@pytest.mark.parametrize("name", small_steps.STEPS)
def test_cycles_and_memory_stay_within_the_record(name: str) -> None:
    with open(small_steps.RECORD, encoding="utf-8") as stream:
        recorded = json.load(stream)[name]
    measured = small_steps.measure(name)
    for key in small_steps.KEYS:
        assert measured[key] <= recorded[key] * MARGIN, (
            f"{key} of the {name} step: {measured[key]:,}, on record {recorded[key]:,}; if that"
            " is meant, run python -m tests.preflight.small_steps and commit the record with it"
        )
