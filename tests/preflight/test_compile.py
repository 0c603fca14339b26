"""The compiler's child process, and costs of small steps, which must not exceed the record."""

import dataclasses
import re
import sys
from unittest import mock

import pytest
import tensorflow as tf

from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight import estimate, figures
from bigbird_ja.preflight.compile import compile_for, find_chip, find_slice, read_optimized
from bigbird_ja.preflight.machine_code import Code
from bigbird_ja.train.engines.lowering import program as program_lib
from bigbird_ja.train.engines.lowering.lowered import LoweredStep, Spec, Traced
from testkit import ROOT
from testkit.configs import fitted, with_data
from tests.preflight import SHORTAGES, small_steps

V3 = find_chip("v3")

TRACED = Traced(b"module", {}, {})
STEP = LoweredStep(TRACED, TRACED, {}, {}, {}, 1)
RESULT = """
import json, sys
out, result = sys.argv[-1], {"hlo": "HloModule made", **%s}
json.dump(result, open(out + "/result.json", "w"))
"""


def _child(monkeypatch, code):
    monkeypatch.setattr(compile_lib, "CHILD", (sys.executable, "-c", code))


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("import os; os.abort()", "crashed (SIGABRT)"),
        (
            "import sys; sys.stderr.write('F0101 Check failed: x\\nstack\\n'); sys.exit(3)",
            "crashed (status 3): F0101 Check failed: x",
        ),
        (RESULT % {"error": "INTERNAL: odd\nmore"}, "failed: INTERNAL: odd"),
    ],
)
def test_a_crash_is_one_clear_line(monkeypatch, code, printed):
    _child(monkeypatch, code)
    with pytest.raises(CommandError) as caught:
        compile_for(STEP, V3)
    assert (caught.value.status, caught.value.reason) == (1, "bug")
    assert printed in str(caught.value)
    assert "v3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_compiler_that_hangs_is_ended(monkeypatch):
    _child(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(compile_lib, "TIMEOUT", 1)
    with pytest.raises(compile_lib.CompilerFailed, match="did not finish within 1 seconds"):
        compile_for(STEP, V3)


def test_a_slice_that_the_real_compiler_does_not_know():
    target = find_slice("v5e:2x4")
    prefix = target.topology.partition(":")[0]
    unknown = dataclasses.replace(target, name="v5e:3x5", topology=f"{prefix}:3x5")
    with pytest.raises(BadInput, match=r"installed libtpu \(.+\) does not know v5e:3x5"):
        compile_for(STEP, unknown)


LISTING = """
import os
if f"--xla_jf_dump_to={out} " in os.environ["LIBTPU_INIT_ARGS"]:
    result["code"] = {"f": {"cycles": 7.0, "slots": {"VALU": 0.5}}}
    json.dump(result, open(out + "/result.json", "w"))
"""


@pytest.mark.parametrize(
    ("chip", "libtpu", "listed"),
    [("v6e", "0.0.42.1", True), ("v5e", "0.0.17", False), ("v3", "0.0.52", True)],
)
def test_machine_code_is_listed_by_newer_compilers(chip, libtpu, listed):
    assert compile_lib.lists_code(chip, libtpu) == listed


def test_machine_code_is_made_on_request(monkeypatch):
    monkeypatch.setattr(compile_lib, "read_versions", lambda: {"libtpu": "0.0.42.1"})
    _child(monkeypatch, RESULT % {"flops": 7.0} + LISTING)
    assert compile_for(STEP, find_chip("v5e")).code is None
    program = compile_for(STEP, find_chip("v5e"), with_code=True)
    assert program.code == {"f": Code(7.0, {"VALU": 0.5})}
    assert (program.hlo, program.flops) == ("HloModule made", 7.0)


def test_a_step_has_the_same_bytes_in_whatever_order_tensorflow_writes_attributes():
    """Check that attributes are sorted. TensorFlow writes `grad_x` and `grad_y` in varying order.

    A compiled program is looked up by the bytes of its step.
    """

    def gradients(values):
        with tf.GradientTape() as tape:
            tape.watch(values["a"])
            product = values["a"]
            for _ in range(12):
                product = tf.matmul(product, values["b"])
        return [tape.gradient(product, values["a"])]

    specs = {name: Spec((8, 8), "float32") for name in "ab"}
    names = re.findall(b"grad_[xy]", program_lib.trace(gradients, specs, ["gradient"]).hlo)
    assert len(names) >= 16 and names == [b"grad_x", b"grad_y"] * (len(names) // 2)


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setattr(compile_lib, "PACKAGES", ("no-such-package",))
    with pytest.raises(BadInput, match=r"pip install 'bigbird-ja\[preflight\]'"):
        compile_lib.read_versions()


_G = 1 << 30


@pytest.mark.parametrize(
    ("name", "used", "largest"),
    [
        (
            "detailed",
            9.28 * _G,
            {"layer_3/mlp/MatMul": 4.64 * _G, "(made by the compiler)": 200704},
        ),
        ("single", 64834560000, {"output of fusion.3@{1}": 64834560000}),
        ("early", 120.76 * _G, {}),
        ("newer", 543.31 * _G, {}),
    ],
)
def test_shortages_in_every_form(name, used, largest):
    assert compile_lib.is_shortage(SHORTAGES[name])
    result = compile_lib.parse_shortage(SHORTAGES[name])
    assert result.used == round(used)
    assert {one["op"]: one["bytes"] for one in result.largest} == pytest.approx(largest, abs=1)
    assert all(one["shape"].startswith(("bf16[", "f32[")) for one in result.largest)
    assert not compile_lib.is_shortage("INTERNAL: Mosaic failed")


def test_a_program_that_jaxlib_cannot_read_is_taken_from_the_listing(tmp_path):
    words = "async-update instruction should have 1 operands but sees 3"
    program = mock.Mock(as_text=mock.Mock(side_effect=RuntimeError(words)))
    with pytest.raises(RuntimeError, match="async-update"):
        read_optimized(program, tmp_path)
    (tmp_path / "17-TLP-hlo.txt").write_text("HloModule listed")
    assert read_optimized(program, tmp_path) == "HloModule listed"


# Maximum ratio of a cost to the recorded cost. A commit that changes a cost must also change the
# record.
MARGIN = 1.05


# Steps that only slow tests compile. The default step is one of them if libtpu lists machine code,
# since a fast test of machine code then compares cycles and memory of a similar step.
RARE = [name for name in small_steps.STEPS if name != "default" or small_steps.lists_code()]


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


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in RARE)) for n in small_steps.STEPS]
)
def test_cycles_and_memory_stay_within_the_record(name):
    _check(name, small_steps.measure(name), small_steps.KEYS)


@pytest.mark.skipif(
    not small_steps.TAKES_KERNELS and not small_steps.lists_code(),
    reason="this libtpu lists no code, and the kernels need jax 0.7",
)
@pytest.mark.parametrize(
    "name", [pytest.param(small_steps.BY_CODE, marks=pytest.mark.slow), small_steps.KERNEL_BY_CODE]
)
def test_cycles_by_machine_code_stay_within_the_record_and_are_printed(name):
    """Compile the kernels also with libtpu of Kaggle's image, which does not list machine code."""
    result = small_steps.measure_by_code(name)
    is_kernel = name == small_steps.KERNEL_BY_CODE
    assert result.fits and (result.attention_implementation == "kernel") == is_kernel
    if not small_steps.lists_code():
        return
    # For base-4096 the coverage is 0.984, since its step contains fewer scatters.
    assert result.code_coverage >= 0.9
    assert all(op["bound_by"] for op in result.top_ops if op["bundle_cycles"])
    assert {"HBM", "loads", "vector unit"} <= result.code_bound_by.keys()
    _check(
        name, {key: getattr(result, key) for key in small_steps.CODE_KEYS}, small_steps.CODE_KEYS
    )
    text = figures.describe(result)
    assert f"({result.code_coverage:.1%} counted)" in text and "by machine code\n" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for op in (op for op in result.top_ops if op["bundle_cycles"]):
        name, end = figures.shorten_name(op["op"]), f"{op['hbm_cycles'] / 1e6:.2f} {op['bound_by']}"
        assert any(row.startswith(name) and row.endswith(end) for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(not small_steps.TAKES_KERNELS, reason="the kernels need jax 0.7")
def test_a_step_of_global_and_local_layers_is_compiled_with_kernels_and_without_scores():
    length = 768  # No other dimension of the model has this size.
    changed = (f"make_data.seq_length={length}", "model.architecture=modernbert")
    sets = (*small_steps.TINY, *changed, "model.num_layers=2")
    config = fitted(None, sets)
    config = kernels.resolve_attention(*with_data(config), "tpu", "v5e")
    compiled = compile_for(estimate.trace(*with_data(config), 2), find_chip("v5e"))
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
