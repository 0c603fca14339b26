"""What is counted in listings, against libtpu's own analysis of a program that it can analyse."""

import os
import re
import subprocess
import sys

import pytest

from bigbird_ja.accelerators import CHIPS
from bigbird_ja.preflight import compile_child, costs, hlo, machine_code, roofline
from tests.preflight import small_steps

PROGRAM = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from bigbird_ja.preflight.compile_child import Place, devices_of

def attend(a, b):
    scores = jnp.dot(a, b).astype(jnp.float32)
    return jax.nn.softmax(scores).astype(jnp.bfloat16) @ b.T

place = SingleDeviceSharding(devices_of(Place(sys.argv[1]))[0])
square = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=place)
print(jax.jit(attend).lower(square, square).compile().as_text())
"""
ANALYSED = re.compile(r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)')


@pytest.mark.skipif(not small_steps.lists_code(), reason="this libtpu does not list its code")
def test_counts_agree_with_the_compilers_own_analysis(tmp_path):
    """It adds what copies take; here they run beside the bundles. So its figure lies between."""
    listings, analysis = tmp_path / "listings", tmp_path / "analysis"
    listings.mkdir()
    analysis.mkdir()
    flags = (
        f"{compile_child.ENVIRONMENT['LIBTPU_INIT_ARGS']} {machine_code.flags(str(listings))}"
        f" --xla_jf_dump_static_llo_profile_to={analysis}"
    )
    compiled = subprocess.run(
        [sys.executable, "-c", PROGRAM, CHIPS["v5e"].topology],
        env={**os.environ, **compile_child.ENVIRONMENT, "LIBTPU_INIT_ARGS": flags},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    texts = "".join(path.read_text() for path in analysis.glob("*.textproto"))
    analysed = {name: int(number) for name, number in ANALYSED.findall(texts)}
    module = hlo.parse(compiled.stdout[compiled.stdout.index("HloModule") :])
    result = roofline.code_costs(
        module, costs.costs(module), machine_code.collect(str(listings)), CHIPS["v5e"]
    )
    big = [code for code in result if analysed.get(code.cost.instruction.name, 0) > 1000]
    assert len(big) >= 3
    for code in big:
        assert code.bundle_cycles is not None
        theirs = analysed[code.cost.instruction.name]
        assert 0.95 * code.bundle_cycles <= theirs
        assert theirs <= 1.10 * (code.bundle_cycles + code.hbm_cycles) + 1000
