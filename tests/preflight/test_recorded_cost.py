"""The train step does not become dearer unnoticed: small ones against the record."""

import re

import pytest

from bigbird_ja.accelerators.chips import CHIPS
from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.preflight import estimate, figures
from bigbird_ja.preflight.compile import compile_for, of_chip
from testkit import ROOT
from testkit.configs import fitted, with_data
from tests.preflight import small_steps

# More than this over the record fails; change the record in the commit that changes the cost.
MARGIN = 1.05


# Where the machine code is listed, the steps below have their memory on record too.
RARE = [name for name in small_steps.STEPS if name != "default" or small_steps.lists_code()]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in RARE)) for n in small_steps.STEPS]
)
def test_cycles_and_memory_stay_within_the_record(name):
    _check(name, small_steps.measure(name), small_steps.KEYS)


def _check(name, measured, keys):
    compiler = small_steps.compiler()
    recorded = small_steps.recorded().get(compiler, {}).get(name)
    if recorded is None:
        pytest.skip(f"libtpu {compiler} is not on record")
    for key in keys:
        assert measured[key] <= recorded[key] * MARGIN, (
            f"{key} of the {name} step: {measured[key]:,}, on record {recorded[key]:,}; if that"
            " is meant, run python -m tests.preflight.small_steps and commit the record with it"
        )


@pytest.mark.skipif(
    not small_steps.TAKES_KERNELS and not small_steps.lists_code(),
    reason="this libtpu lists no code, and the kernels need jax 0.7",
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(small_steps.BY_CODE, marks=pytest.mark.nightly), small_steps.KERNEL_BY_CODE],
)
def test_cycles_by_machine_code_stay_within_the_record_and_are_printed(name):
    """Kernels compile on Kaggle's image too, whose libtpu lists no code."""
    result = small_steps.measure_by_code(name)
    is_kernel = name == small_steps.KERNEL_BY_CODE
    assert result["fits"] and (result["attention_implementation"] == "kernel") == is_kernel
    if not small_steps.lists_code():
        return
    assert result["code_coverage"] >= 0.9  # 0.984 of base-4096, which has fewer scatters
    assert all(op["bound_by"] for op in result["top_ops"] if op["bundle_cycles"])
    assert {"HBM", "loads", "vector unit"} <= result["code_bound_by"].keys()
    _check(name, result, small_steps.CODE_KEYS)
    text = figures.describe(result, CHIPS[small_steps.CODE_CHIP])
    assert f"({result['code_coverage']:.1%} counted)" in text and "`plan` takes these" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for op in (op for op in result["top_ops"] if op["bundle_cycles"]):
        name, end = figures.short_name(op["op"]), f"{op['hbm_cycles'] / 1e6:.2f} {op['bound_by']}"
        assert any(row.startswith(name) and row.endswith(end) for row in rows)


@pytest.mark.nightly
@pytest.mark.skipif(not small_steps.TAKES_KERNELS, reason="the kernels need jax 0.7")
def test_a_step_of_global_and_local_layers_is_compiled_with_kernels_and_without_scores():
    length = 768  # of which no other size is
    changed = (f"make_data.seq_length={length}", "model.architecture=modernbert")
    sets = (*small_steps.TINY, *changed, "model.num_layers=2")
    config = fitted(None, sets)
    config = kernels.resolved(*with_data(config), "tpu", "v5e")  # auto
    compiled = compile_for(estimate.trace(*with_data(config), 2), of_chip("v5e"))
    calls = [line for line in compiled.hlo.splitlines() if "tpu_custom_call" in line]
    found = re.findall(r'layer_(\d)/attention/(gradient/)?XlaCustomCallV2"', "\n".join(calls))
    assert sorted(found) == [("0", ""), ("0", "gradient/"), ("1", ""), ("1", "gradient/")]
    assert f"{length},{length}" not in compiled.hlo


def test_every_locked_compiler_is_on_record():
    locks = {
        path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("requirements/*.lock")
    }
    pins = {name: re.search(r"(?m)^libtpu==(\S+)", text) for name, text in locks.items()}
    versions = {name: pin[1] for name, pin in pins.items() if pin}
    assert len(versions) >= 2
    assert set(versions.values()) <= set(small_steps.recorded())
