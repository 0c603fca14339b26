"""The child process around the compiler. The compiler itself: test_recorded_cost."""

import dataclasses
import re
import sys
from unittest import mock

import pytest
import tensorflow as tf

from bigbird_ja.preflight import compile as compile_lib
from bigbird_ja.preflight.compile import of_chip, of_topology, optimized
from bigbird_ja.preflight.machine_code import Code
from bigbird_ja.process.errors import BadInput, CommandError
from bigbird_ja.train.engines.lowering import program as program_lib
from bigbird_ja.train.engines.lowering.lowered import LoweredStep, Spec, Traced
from tests.preflight import SHORTAGES

V3 = of_chip("v3")
pytest.importorskip("libtpu", reason="the TPU compiler comes with `make install-all`")


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
        (RESULT % {"error": "INTERNAL: odd\nmore"}, "refused: INTERNAL: odd"),
    ],
)
def test_a_crash_is_one_clear_line(monkeypatch, code, printed):
    _child(monkeypatch, code)
    with pytest.raises(CommandError) as caught:
        compile_lib.compile_for(STEP, V3)
    assert (caught.value.status, caught.value.reason) == (1, "bug")
    assert printed in str(caught.value)
    assert "v3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_compiler_that_hangs_is_ended(monkeypatch):
    _child(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(compile_lib, "TIMEOUT", 1)
    with pytest.raises(compile_lib.CompilerFailed, match="did not finish within 1 seconds"):
        compile_lib.compile_for(STEP, V3)


def test_a_slice_that_the_real_compiler_does_not_know():
    target = of_topology("v5e:2x4")
    prefix = target.topology.partition(":")[0]
    unknown = dataclasses.replace(target, name="v5e:3x5", topology=f"{prefix}:3x5")
    with pytest.raises(BadInput, match=r"installed libtpu \(.+\) does not know v5e:3x5"):
        compile_lib.compile_for(STEP, unknown)


LISTING = """
import os
if f"--xla_jf_dump_to={out} " in os.environ["LIBTPU_INIT_ARGS"]:
    result["code"] = {"f": {"cycles": 7.0, "slots": {"VALU": 0.5}}}
    json.dump(result, open(out + "/result.json", "w"))
"""


@pytest.mark.parametrize(
    ("chip", "libtpu", "listed"),
    [("v6e", "0.0.42.1", True), ("v5e", "0.0.17", False), ("v3", "0.0.52", False)],
)
def test_machine_code_is_listed_by_newer_compilers_for_some_chips(chip, libtpu, listed):
    assert compile_lib.lists_code(chip, libtpu) == listed


def test_machine_code_is_made_on_request(monkeypatch):
    monkeypatch.setattr(compile_lib, "versions", lambda: {"libtpu": "0.0.42.1"})
    _child(monkeypatch, RESULT % {"flops": 7.0} + LISTING)
    assert compile_lib.compile_for(STEP, of_chip("v5e")).code is None
    program = compile_lib.compile_for(STEP, of_chip("v5e"), with_code=True)
    assert program.code == {"f": Code(7.0, {"VALU": 0.5})}
    assert (program.hlo, program.flops) == ("HloModule made", 7.0)


def test_a_step_has_the_same_bytes_in_whatever_order_tensorflow_writes_attributes():
    """Of each product's gradient TensorFlow notes `grad_x` and `grad_y` in an order that changes
    from process to process; what is compiled ahead is found again by its bytes."""

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
        compile_lib.versions()


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
    result = compile_lib.shortage(SHORTAGES[name])
    assert result.used == round(used)
    assert {one["op"]: one["bytes"] for one in result.largest} == pytest.approx(largest, abs=1)
    assert all(one["shape"].startswith(("bf16[", "f32[")) for one in result.largest)
    assert not compile_lib.is_shortage("INTERNAL: Mosaic failed")


def test_a_program_that_jaxlib_cannot_read_is_taken_from_the_listing(tmp_path):
    words = "async-update instruction should have 1 operands but sees 3"
    program = mock.Mock(as_text=mock.Mock(side_effect=RuntimeError(words)))
    with pytest.raises(RuntimeError, match="async-update"):
        optimized(program, tmp_path)
    (tmp_path / "17-TLP-hlo.txt").write_text("HloModule listed")
    assert optimized(program, tmp_path) == "HloModule listed"
