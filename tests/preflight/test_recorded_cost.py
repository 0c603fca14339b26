"""The train step does not become dearer unnoticed: small ones against the record."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from testkit import ROOT
from tests.preflight import small_steps

# More than this over the record fails; change the record in the commit that changes the cost.
MARGIN = 1.05


SLOW = [name for name in small_steps.STEPS if name != "default"]


@pytest.mark.parametrize(
    "name", ["default", *(pytest.param(name, marks=pytest.mark.nightly) for name in SLOW)]
)
def test_cycles_and_memory_stay_within_the_record(name: str) -> None:
    record = small_steps.recorded()
    if small_steps.compiler() not in record:
        pytest.skip(f"libtpu {small_steps.compiler()} is not on record, only {', '.join(record)}")
    recorded = record[small_steps.compiler()][name]
    measured = small_steps.measure(name)
    for key in small_steps.KEYS:
        assert measured[key] <= recorded[key] * MARGIN, (
            f"{key} of the {name} step: {measured[key]:,}, on record {recorded[key]:,}; if that"
            " is meant, run python -m tests.preflight.small_steps and commit the record with it"
        )


@pytest.mark.skipif(not small_steps.lists_code(), reason="this libtpu does not list its code")
@pytest.mark.parametrize("name", [small_steps.BY_CODE, small_steps.KERNEL_BY_CODE])
def test_cycles_by_machine_code_stay_within_the_record(name: str) -> None:
    found = small_steps.measure_by_code(name)
    assert found["code_coverage"] >= 0.9  # 0.984 of base-4096, where scatters are less of it
    assert all(op["bound_by"] for op in found["top_ops"] if op["bundle_cycles"])
    assert {op["bound_by"] for op in found["top_ops"]} & {"HBM", "matrix unit", "vector unit"}
    record = small_steps.recorded().get(small_steps.compiler(), {}).get(name)
    if record is None:
        pytest.skip(f"libtpu {small_steps.compiler()} has no code on record")
    key = small_steps.CODE_KEY
    assert found[key] <= record[key] * MARGIN, (
        f"{key}: {found[key]:,}, on record {record[key]:,}; if that is meant, run python -m"
        " tests.preflight.small_steps and commit the record with it"
    )


@pytest.mark.skipif(
    tuple(map(int, version("jax").split(".")[:2])) < (0, 7), reason="the kernels want jax 0.7"
)
def test_every_compiler_takes_the_kernels() -> None:
    """`auto` takes them on Kaggle's image too, whose libtpu is older than its jax expects."""
    found = small_steps.measure_by_code(small_steps.KERNEL_BY_CODE)
    assert found["fits"] and found["attention_implementation"] == "kernel"


@pytest.mark.nightly
@pytest.mark.skipif(not small_steps.lists_code(), reason="this libtpu does not list its code")
def test_a_layer_many_times_and_the_rest_are_the_whole() -> None:
    # The last layer is shorter than the others.
    two, three, six = (
        small_steps.measure_by_code(layers=layers)[small_steps.CODE_KEY] for layers in (2, 3, 6)
    )
    assert two + 4 * (three - two) == pytest.approx(six, rel=0.03)


def test_every_locked_compiler_is_on_record() -> None:
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("requirements*.lock")
    }
    pins = {name: re.search(r"(?m)^libtpu==(\S+)", text) for name, text in texts.items()}
    versions = {name: pin[1] for name, pin in pins.items() if pin}
    locks = ("requirements-extra.lock", "requirements-estimator.lock", "requirements-kaggle.lock")
    assert set(locks) <= set(versions)
    assert set(versions.values()) <= set(small_steps.recorded())
