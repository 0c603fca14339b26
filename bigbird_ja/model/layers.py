"""Layers that the encoders of BigBird and ModernBERT share.

The module contains dense layers, activations, layer norm, attention over all keys, counter-based
dropout and gradient checkpointing. Gradient checkpointing stores only the inputs of a function, and
computes the function again in the backward pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops import control_flow_util

from bigbird_ja.model import head_attention
from bigbird_ja.model.params import list_layer_parameters
from bigbird_ja.settings.schema import Config

Parameters = Mapping[str, tf.Tensor]


def dense(params: Parameters, scope: str, inputs: tf.Tensor) -> tf.Tensor:
    """Multiply `inputs` [..., in] by the kernel, and add a bias if there is one: [..., out]."""
    kernel = tf.cast(params[f"{scope}/kernel"], inputs.dtype)
    if len(inputs.shape) == 2:
        product = tf.matmul(inputs, kernel)
    else:
        # The einsum keeps all axes. Next to a reshape to two dimensions, the compiler might choose
        # other memory layouts and copy arrays.
        letters = "abcd"[: len(inputs.shape) - 1]
        product = tf.einsum(f"{letters}i,io->{letters}o", inputs, kernel)
    bias = params.get(f"{scope}/bias")
    return product if bias is None else product + tf.cast(bias, inputs.dtype)


def activate(name: str, inputs: tf.Tensor, *, save_derivative: bool = False) -> tf.Tensor:
    """Apply `gelu_new` (tanh form), `gelu` (error function) or `relu`, in float32.

    For the backward pass the two forms of GELU save `inputs`. With `save_derivative` they save
    their values and derivatives instead, in the dtype of `inputs`. Without `save_derivative` a
    TPU's compiler computes values and derivatives inside the matmuls that read them, once for each
    tile of a matmul's result. This can take longer than the matmul itself.
    """
    if name in FORMS and (save_derivative or name == "gelu_new"):
        return _apply_with_derivative(name, inputs) if save_derivative else _gelu_new(inputs)
    values = tf.cast(inputs, tf.float32)
    values = tf.nn.relu(values) if name == "relu" else tf.nn.gelu(values, approximate=False)
    return tf.cast(values, inputs.dtype)


@tf.custom_gradient
def _gelu_new(inputs: tf.Tensor):  # type: ignore[no-untyped-def]
    """Compute the tanh form of GELU by a sigmoid, which needs few operations."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        _, slope = _tanh_form(inputs)
        return tf.cast(tf.cast(upstream, tf.float32) * slope, inputs.dtype)

    return tf.cast(_tanh_form(inputs)[0], inputs.dtype), gradient


def _apply_with_derivative(name: str, inputs: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def run(inputs: tf.Tensor):  # type: ignore[no-untyped-def]
        value, slope = barrier([tf.cast(one, inputs.dtype) for one in FORMS[name](inputs)])
        return value, lambda upstream: upstream * slope

    return run(inputs)


# gelu_new(x) = x (1 + tanh(c (x + a x^3))) / 2 = x sigmoid(2 c (x + a x^3)), c = sqrt(2 / pi).
_CUBIC = 0.044715
_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)


def _tanh_form(inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `gelu_new` and its derivative, float32."""
    x = tf.cast(inputs, tf.float32)
    square = x * x
    share = tf.sigmoid(x * (_SLOPE + _SLOPE * _CUBIC * square))
    inner = x * (_SLOPE + 3.0 * _SLOPE * _CUBIC * square)
    return x * share, share * (1.0 + inner * (1.0 - share))


# erf(x) = x P(x^2) / Q(x^2) for |x| up to 4, as Eigen and XLA compute it in float32.
_P = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_Q = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03),
    -1.42647390514189e-02,
)


def _error_form(inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `gelu` and its derivative, float32, in fewer operations than TensorFlow."""
    x = tf.cast(inputs, tf.float32)
    near = tf.clip_by_value(x * math.sqrt(0.5), -4.0, 4.0)
    above, below = (tf.math.polyval([*map(tf.constant, each)], near * near) for each in (_P, _Q))
    share = 0.5 + 0.5 * near * above / below
    return x * share, share + x * tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


# Functions that return the values and the derivatives of an activation, float32.
FORMS = {"gelu_new": _tanh_form, "gelu": _error_form}


def layer_norm(params: Parameters, scope: str, inputs: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalize the last axis with float32 statistics. The result has the dtype of `inputs`.

    Without a parameter `beta`, no bias is added.
    """
    with tf.name_scope("layer_norm"):
        values = tf.cast(inputs, tf.float32)
        mean = tf.reduce_mean(values, axis=-1, keepdims=True)
        centered = values - mean
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        scaled = centered * tf.math.rsqrt(variance + epsilon)
        scaled *= params[f"{scope}/gamma"]
        beta = params.get(f"{scope}/beta")
        return tf.cast(scaled if beta is None else scaled + beta, inputs.dtype)


class Tokens(NamedTuple):
    """Mask of the tokens in a batch, and numbers of the documents that they belong to."""

    # float32 [b, S], 1 for a token, 0 for padding, which no query sees.
    mask: tf.Tensor
    # int32 [b, S], document numbers, or None if a query may see keys of other documents.
    documents: tf.Tensor | None

    def map(self, change: Callable[[tf.Tensor], tf.Tensor]) -> "Tokens":
        """Apply the function `change` to the mask and to the document numbers."""
        documents = None if self.documents is None else change(self.documents)
        return Tokens(change(self.mask), documents)


# Score of a hidden key, far below any real score. It is finite, so that a row with only hidden keys
# has a finite maximum to subtract. The exponentials are also multiplied by the 0/1 mask, so that
# the probability of a hidden key is exactly zero even in such a row.
HIDDEN = -1e9


def dense_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    tokens: Tokens,
    static_mask: np.ndarray | None,
    query_documents: tf.Tensor | None = None,
) -> tf.Tensor:
    """Compute softmax attention over every key that the masks allow.

    Args:
        query: [b, Q, heads, size], float32 or bfloat16, not scaled.
        key: [b, S, heads, size].
        value: [b, S, heads, size].
        tokens: tokens of the keys, [b, S].
        static_mask: bool [heads or 1, Q, S], keys that queries see, or None for all.
        query_documents: int32 [b, Q], documents of the queries, or None if the queries and the keys
            are the same tokens.

    Returns:
        Context [b, Q, heads, size], which is zero for a query that sees no key.
    """
    queries = tokens.documents if query_documents is None else query_documents
    if head_attention.is_used(int(query.shape[1]), int(key.shape[1])):
        visible_to_heads = head_attention.visible_keys(
            tokens.mask, tokens.documents, queries, static_mask
        )
        return head_attention.attend_by_heads(query, key, value, visible_to_heads, HIDDEN)
    with tf.name_scope("attention/scores"):
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key)
        scores = tf.cast(scores, tf.float32) * query.shape[-1] ** -0.5
        visible = tokens.mask[:, None, None, :]
        if static_mask is not None:
            visible = visible * tf.constant(static_mask[None], tf.float32)
        if tokens.documents is not None and queries is not None:
            same = tf.equal(queries[:, None, :, None], tokens.documents[:, None, None, :])
            visible = visible * tf.cast(same, tf.float32)
    with tf.name_scope("attention/softmax"):
        scores = tf.where(visible > 0, scores, HIDDEN)
        maximum = tf.stop_gradient(tf.reduce_max(scores, axis=-1, keepdims=True))
        weights = tf.exp(scores - maximum) * visible
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        weights = weights / tf.where(total > 0, total, 1.0)
    with tf.name_scope("attention/context"):
        return tf.einsum("bhqk,bkhd->bqhd", tf.cast(weights, value.dtype), value)


# Counter-based dropout: the mask is a hash of a key and of each element's position, so no mask is
# stored. The last axis counts columns, and all other axes together count rows. Each row and each
# column gets a well mixed 32-bit number. For each element, two rounds of a hash finalizer (multiply
# and shift, with the constants of Chris Wellons' `lowbias32`) join the numbers of its row and its
# column. XLA fuses the hash into the ops that use the mask, in the forward and the backward pass. A
# CPU and a TPU compute the same bits. TensorFlow's stateless random numbers (Philox) would take
# some ten rounds of multiplications per number, and would occupy memory until the backward pass.

# 2^32 / golden ratio. A multiplication by this number spreads small integers over 32 bits.
_GOLDEN = 0x9E3779B9
_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B


def make_key(seed: int, step: tf.Tensor | int) -> tf.Tensor:
    """Return the dropout key of a training step, uint32 [2]. It depends only on seed and step."""
    start = tf.constant([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], tf.uint32)
    return fold_in(start, step)


def fold_in(key: tf.Tensor, place: tf.Tensor | int) -> tf.Tensor:
    """Derive a dropout key, uint32 [2], for one place (micro-batch, replica, layer, ...).

    `place` is a Python integer or a scalar tensor, of which the low 32 bits are used.
    """
    number = tf.cast(tf.cast(place, tf.int64) & 0xFFFFFFFF, tf.uint32)
    first = _mix(key[0] ^ _mix(number + _make_constant(_GOLDEN)))
    second = _mix(key[1] + first * _make_constant(_GOLDEN) + number)
    return tf.stack([first, second])


def dropout(x: tf.Tensor, rate: float, key: tf.Tensor | None, place: int) -> tf.Tensor:
    """Zero each element with probability `rate`, independently, and scale the others up.

    Args:
        x: float, static shape, at least one dimension.
        rate: probability from 0 to below 1, rounded to a multiple of 2^-32.
        key: uint32 [2], or None to disable dropout (evaluation).
        place: number of this place in the model, different for each use of a key.

    Returns:
        Tensor like `x`. The gradient computes the same mask again.
    """
    if key is None or rate <= 0.0:
        return x

    @tf.custom_gradient
    def apply(x: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, object]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
            return _apply_mask(upstream, rate, key), None

        return _apply_mask(x, rate, key), gradient

    place_key = fold_in(key, place)
    with tf.name_scope("dropout"):
        return apply(x, place_key)


def keep_mask(shape: list[int], rate: float, key: tf.Tensor) -> tf.Tensor:
    """Return a bool mask of `shape`, True with probability 1 - rate."""
    rows = tf.constant(0, tf.uint32)
    stride = 1
    for axis in reversed(range(len(shape) - 1)):
        place = tf.cast(tf.range(shape[axis]), tf.uint32) * _make_constant(stride)
        rows += tf.reshape(place, [-1] + [1] * (len(shape) - 1 - axis))
        stride *= shape[axis]
    row_bits = _mix(_mix(rows + key[0]) ^ key[1])
    columns = tf.cast(tf.range(shape[-1]), tf.uint32)
    column_bits = _mix(columns * _make_constant(_GOLDEN) + key[1])
    # Two rounds of mixing follow the XOR. With XOR alone, the bits at three corners of a rectangle
    # of elements would determine the bits at the fourth corner.
    bits = row_bits ^ column_bits
    bits = (bits ^ _shift(bits, 16)) * _make_constant(_FIRST)
    bits = (bits ^ _shift(bits, 15)) * _make_constant(_SECOND)
    return bits >= _make_constant(min(round(rate * 2**32), 2**32 - 1))


def _apply_mask(x: tf.Tensor, rate: float, key: tf.Tensor) -> tf.Tensor:
    with tf.name_scope("dropout"):
        keep = keep_mask(x.shape.as_list(), rate, key)
        # The scale is applied in float32, as bfloat16 cannot represent 1 / (1 - rate) exactly.
        scaled = tf.cast(x, tf.float32) * (1.0 / (1.0 - rate))
        return tf.cast(tf.where(keep, scaled, 0.0), x.dtype)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Mix the bits of a uint32 by a bijection."""
    x = (x ^ _shift(x, 16)) * _make_constant(_FIRST)
    x = (x ^ _shift(x, 15)) * _make_constant(_SECOND)
    return x ^ _shift(x, 16)


def _shift(x: tf.Tensor, places: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, _make_constant(places))


def _make_constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)


def run_layers(
    params: Parameters,
    config: Config,
    run: Callable[[int, Parameters, tf.Tensor], tf.Tensor],
    hidden: tf.Tensor,
    dropout_key: tf.Tensor | None,
) -> tf.Tensor:
    """Apply all layers in order, and return the hidden states of the last one.

    `run(layer, parameters, hidden)` computes one layer. With gradient checkpointing the backward
    pass computes each layer again.
    """
    for layer in range(config.model.num_layers):
        names = list_layer_parameters(config, layer)

        def of_layer(
            hidden: tf.Tensor, *weights: tf.Tensor, layer: int = layer, names: Sequence[str] = names
        ) -> tf.Tensor:
            return run(layer, dict(zip(names, weights, strict=True)), hidden)

        weights = [params[name] for name in names]
        with tf.name_scope(f"layer_{layer}"):
            if config.training.gradient_checkpointing and dropout_key is not None:
                hidden = recompute(of_layer, hidden, weights)
            else:
                hidden = of_layer(hidden, *weights)
    return hidden


def recompute(
    function: Callable[..., tf.Tensor], inputs: tf.Tensor, weights: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Compute `function(inputs, *weights)` without storing intermediate results for gradients.

    The backward pass computes `function` again. Unlike `tf.recompute_grad`, this implementation
    works on tensors in graph mode.

    Args:
        function: deterministic function, called twice. It may close over tensors without
            gradient.
        inputs: first argument of `function`, activations.
        weights: other arguments of `function`, for which gradients are computed, too.
    """

    @tf.custom_gradient
    def run(inputs: tf.Tensor, *weights: tf.Tensor):  # type: ignore[no-untyped-def]
        def gradient(upstream: tf.Tensor):  # type: ignore[no-untyped-def]
            # Without the barrier the compiler would merge this second computation with that of the
            # forward pass. The barrier also delays the second one until the upstream gradient
            # exists.
            again, upstream = barrier([inputs, upstream])
            with tf.GradientTape() as tape:
                tape.watch([again, *weights])
                outputs = function(again, *weights)
            return tape.gradient(outputs, [again, *weights], output_gradients=upstream)

        return function(inputs, *weights), gradient

    return run(inputs, *weights)


def barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the same tensors, behind an optimization barrier of XLA.

    A TPU's compiler merges no operations across the barrier, and moves none across it. A CPU's
    compiler removes barriers early, so that barriers save no memory on a CPU.
    """
    if is_compiled_by_xla():
        return list(gen_xla_ops.xla_optimization_barrier(input=list(tensors)))
    return [tf.identity(tensor) for tensor in tensors]


def is_compiled_by_xla() -> bool:
    """Return whether XLA compiles the traced function (a TPU's graph, or `jit_compile=True`)."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
