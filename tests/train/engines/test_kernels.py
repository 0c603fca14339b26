"""The attention kernels on their way from TensorFlow's graph to a TPU's compiler, without one."""

import re

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.model.layers import Tokens
from bigbird_ja.train.engines.lowering import Spec, as_jax_function
from bigbird_ja.train.engines.lowering.program import trace

jax = pytest.importorskip("jax")
if jax.__version_info__ < (0, 7):
    pytest.skip("the kernels want jax 0.7", allow_module_level=True)

from bigbird_ja.model.kernels.kernel_attention import kernel_attention  # noqa: E402

AXES = (1, 6, 2, 64, 128)  # batch, tiles, heads, size, rows
NAMES = ("query", "key", "value")


def test_both_kernels_reach_the_compiler_with_results_of_their_own():
    shifts = np.array([[2, 3], [3, 2]], np.int32)

    def both(values):
        given = [tf.cast(values[name], tf.bfloat16) for name in NAMES]
        with tf.GradientTape() as tape:
            tape.watch(given)
            context = kernel_attention(*given, Tokens(values["mask"], None), shifts)
        result = [context, *tape.gradient(context, given)]
        return [tf.cast(x, tf.float32) for x in result]

    inputs = {name: Spec(AXES, "float32") for name in NAMES}
    inputs["mask"] = Spec((1, AXES[1], AXES[4]), "float32")
    traced = trace(both, inputs, ["context", *NAMES])
    shapes = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in inputs.values()]
    function = jax.jit(as_jax_function(traced, "tpu"))
    text = function.trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    # Forward: context and statistics. Backward: gradients of query, key and value.
    counts = re.findall(r"%\d+:(\d) = stablehlo\.custom_call @tpu_custom_call", text)
    assert counts == ["2", "3"]
