"""Computes activations, and what is kept of them for the backward pass."""

import math

import tensorflow as tf

from bigbird_ja.model.layers import barrier


def activate(name: str, inputs: tf.Tensor, *, keeps_slope: bool = False) -> tf.Tensor:
    """Apply `gelu_new` (tanh form), `gelu` (error function) or `relu`, in float32.

    Args:
        name: of the function.
        inputs: of any shape.
        keeps_slope: both gelus keep their values and their derivatives, in the dtype of `inputs`,
            for the backward pass, instead of `inputs` alone. A TPU's compiler computes what it does
            not keep within the products that read it, once for each tile of their results; where
            products are quick, that takes longer than they do.
    """
    if name in _FORMS and (keeps_slope or name == "gelu_new"):
        return _keeping_slope(name, inputs) if keeps_slope else _gelu_new(inputs)
    values = tf.cast(inputs, tf.float32)
    values = tf.nn.relu(values) if name == "relu" else tf.nn.gelu(values, approximate=False)
    return tf.cast(values, inputs.dtype)


def gated(name: str, both: tf.Tensor, *, keeps_product: bool = False) -> tf.Tensor:
    """Apply `activate` to the first half of the last axis, and multiply by the second half.

    With `keeps_product` the result is kept for the backward pass beside `both`, and there each
    gradient is computed once, as with `keeps_slope` for less memory.
    """
    inner, gate = tf.split(both, 2, axis=-1)
    if not keeps_product or name not in _FORMS:
        return activate(name, inner) * gate

    @tf.custom_gradient
    def run(inner: tf.Tensor, gate: tf.Tensor):  # type: ignore[no-untyped-def]
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            value, slope = _FORMS[name](inner)
            upstream, factor = tf.cast(upstream, tf.float32), tf.cast(gate, tf.float32)
            of_inner, of_gate = upstream * factor * slope, upstream * value
            return barrier([tf.cast(one, both.dtype) for one in (of_inner, of_gate)])

        product = _FORMS[name](inner)[0] * tf.cast(gate, tf.float32)
        return barrier([tf.cast(product, both.dtype)])[0], gradient

    return run(inner, gate)


@tf.custom_gradient
def _gelu_new(inputs: tf.Tensor):  # type: ignore[no-untyped-def]
    """Compute the tanh form by the sigmoid: few operations, as each runs once per matmul tile."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        _, slope = _tanh_form(inputs)
        return tf.cast(tf.cast(upstream, tf.float32) * slope, inputs.dtype)

    return tf.cast(_tanh_form(inputs)[0], inputs.dtype), gradient


def _keeping_slope(name: str, inputs: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def run(inputs: tf.Tensor):  # type: ignore[no-untyped-def]
        value, slope = barrier([tf.cast(one, inputs.dtype) for one in _FORMS[name](inputs)])
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
    """Compute `gelu` and its derivative, float32. TensorFlow's takes more operations."""
    x = tf.cast(inputs, tf.float32)
    near = tf.clip_by_value(x * math.sqrt(0.5), -4.0, 4.0)
    above, below = (tf.math.polyval([*map(tf.constant, each)], near * near) for each in (_P, _Q))
    share = 0.5 + 0.5 * near * above / below
    return x * share, share + x * tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


_FORMS = {"gelu_new": _tanh_form, "gelu": _error_form}
