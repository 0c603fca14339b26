"""Gradient checkpointing: keep a function's inputs, compute it again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops import control_flow_util


def recompute(
    function: Callable[..., tf.Tensor], inputs: tf.Tensor, weights: Sequence[tf.Tensor]
) -> tf.Tensor:
    """`function(inputs, *weights)` with the same gradients, holding on to no intermediate results.

    Unlike `tf.recompute_grad` it works in graph mode, on tensors.

    Args:
        function: deterministic; may close over tensors that need no gradient. It is called twice.
        inputs: what varies from call to call, the activations.
        weights: what else is differentiated.
    """

    @tf.custom_gradient
    def run(inputs: tf.Tensor, *weights: tf.Tensor):  # type: ignore[no-untyped-def]
        def gradient(upstream: tf.Tensor):  # type: ignore[no-untyped-def]
            # The barrier makes the second computation another one than the first, which the
            # compiler would otherwise merge, and ties it to the moment when it is needed.
            again, upstream = barrier([inputs, upstream])
            with tf.GradientTape() as tape:
                tape.watch([again, *weights])
                outputs = function(again, *weights)
            return tape.gradient(outputs, [again, *weights], output_gradients=upstream)

        return function(inputs, *weights), gradient

    return run(inputs, *weights)


def barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same tensors, across which a TPU's compiler neither merges nor moves computations.

    On a CPU nothing guards the memory: its compiler takes barriers out early.
    """
    if compiled_by_xla():
        return list(gen_xla_ops.xla_optimization_barrier(input=list(tensors)))
    return [tf.identity(tensor) for tensor in tensors]


def compiled_by_xla() -> bool:
    """Whether what is being traced goes to XLA: a TPU's graph, or `jit_compile=True`."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
