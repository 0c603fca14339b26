"""Compare predicted step times with published times of public programs: `make bench-clock`.

    python -m scripts.clock [--only NAME]

scripts/clock.yaml describes the programs. This module implements each program in JAX for one
device, compiles it with one layer (or two), and counts its cycles as `preflight` does. The counts
are stored in docs/lab/clock.json. Programs in that file are not compiled again. The cycles of a
step are extrapolated to the program's number of layers. The time of the optimizer's update is
computed from the bytes that it moves, and the time of the traffic between chips from published
link rates.

Published times are compared with predictions by `measured.predict_device_seconds`. Each source (the
programs of one repository on one chip) is predicted with a constant that is fitted to all other
sources. The tables and the picture of docs/lab/clock.md are rewritten.
"""

import argparse
import atexit
import collections
import functools
import json
import math
import os
import shutil
import statistics
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.sharding import SingleDeviceSharding
from matplotlib.figure import Figure

from bigbird_ja.accelerators import measured
from bigbird_ja.accelerators.chips import CHIPS, MEGACORE, predict_link_seconds
from bigbird_ja.preflight import compile as compiler
from bigbird_ja.preflight import costs, hlo, machine_code, roofline
from bigbird_ja.process.console import log

PROGRAMS = Path(__file__).with_suffix(".yaml")
CACHE, PAGE = Path("docs/lab/clock.json"), Path("docs/lab/clock.md")
BLIND = {1: Path("docs/lab/clock_blind.json"), 2: Path("docs/lab/clock_blind2.json")}
PICTURE = Path("docs/images/clock.png")
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
# Milliseconds that a call from Python adds if it waits for the result. The value was calibrated.
DISPATCH_MS = 0.115
# Bytes that the optimizer reads and writes in HBM for each parameter.
UPDATE_BYTES = {"adam": 28, "lamb": 40, "none": 0}
LAYER = "one_layer"  # Name of the `jax.named_scope` that contains the ops of a layer.
BLOCK = 1024  # tokens of a block in `_blocks`
# Milliseconds by kind. "kernels" is the time of Pallas kernels. The time of other ops is counted
# twice, as "code" from their machine code, and as "estimate" from their shapes. Totals also contain
# "update" and "links" (`traffic`).
Counts = dict[str, float]


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Public program, as an entry of scripts/clock.yaml describes it."""

    name: str
    group: str  # repository
    kind: str  # step, attention, matmul, loss or copy
    chip: str
    source: str = ""
    date: str = ""
    versions: str = ""
    # Number of a set of blind predictions, 0 for none. The times of the programs in a set were
    # predicted before the authors knew the published times.
    blind: int = 0
    measured_ms: float | None = None  # published time of a step
    tflops: float | None = None  # published TFLOP/s of a chip, from which the time is computed

    # Names of other programs. A program with `like` is not compiled. It uses the counts of the
    # named program, scaled to its own tokens and layers. A program with `work_of` that has no
    # stored counts uses those of the named program, scaled by the ratio of floating-point
    # operations.
    like: str = ""
    work_of: str = ""
    again: float = 1.0  # work of a layer, relative to a layer of the program in `like` or `work_of`
    extra: float = 1.0  # time of a step with Muon, relative to a step with Adam
    also: tuple[str, ...] = ()  # programs whose times are added to the time of the step
    compiled: int = 1  # number of layers that are compiled
    core: bool = False  # compile for one of v4's two cores, not for the whole chip
    options: dict[str, str] = {}

    # Keys of programs with a single op. `shape` is [batch, heads, length, size] of attention,
    # [tokens, width, vocabulary] of a loss, or the shape of a copied array.
    shape: tuple[int, ...] = ()
    size: int = 0  # rows of a matrix, or size of a head (0: width / heads)
    tiles: tuple[int, ...] = ()
    transposed: bool = False
    relu: bool = False
    backward: bool = False
    on_device: bool = False  # whether the published time excludes the call from Python

    # Model.
    layers: int = 0
    width: int = 0
    heads: int = 0
    kv_heads: int = 0
    mlp: int = 0
    mlp_kind: str = "gated"
    norm: str = "rms"
    rotary: bool = True
    attention: str = "dense"
    scores: str = "float32"
    block: int = 512  # tokens of a block in splash attention
    vocabulary: int = 0
    embedding: int = 0  # width of the embedding table (0: width of the layers)
    tied: bool = False  # whether the embedding table also computes the logits
    one_hot: bool = False  # whether embeddings are computed as a matrix product with one-hot ids
    value_tables: bool = False  # whether every other layer adds embeddings to attention's values
    rank: int = 0  # rank of LoRA (0: all weights are trained)
    dropout: float = 0.0

    # Training. `predictions` is the number of tokens that an encoder predicts in a sequence. It is
    # 0 for a decoder, which predicts all tokens.
    batch: int = 0  # sequences in a microstep of one device
    length: int = 0
    predictions: int = 0
    microsteps: int = 1
    parts: int = 1  # parts of a batch whose losses are computed one after the other
    tile: int = 0  # vocabulary entries whose logits are computed at a time (0: all)
    keeps: str = "all"  # activations stored for the backward pass: all, products, recipe or nothing
    dtype: str = "bfloat16"
    weights: str = "float32"
    gradient: bool = True
    optimizer: str = "adam"
    slice: str = ""
    divided: bool = False  # whether the weights are sharded over the slice

    @property
    def errs_with(self) -> tuple[str, str]:
        """Repository and chip of the program.

        Predictions for programs with the same repository and chip have correlated errors.
        """
        return self.group, self.chip

    @property
    def head_size(self) -> int:
        """Size of an attention head."""
        return self.size or self.width // self.heads

    @property
    def tokens(self) -> int:
        """Tokens in a microstep of one device."""
        return self.batch * self.length

    @property
    def logits(self) -> int:
        """Number of logits of the loss. Work outside of the layers is proportional to it."""
        return self.batch * (self.predictions or self.length) * self.vocabulary

    @property
    def published_ms(self) -> float | None:
        """Published time in milliseconds, or the time that follows from a published rate."""
        if self.tflops is None:
            return self.measured_ms
        weights = sum(map(math.prod, weights_of(self, self.layers).values()))
        attention = 12 * self.layers * self.length * self.heads * self.head_size
        return self.tokens * (6 * weights + attention) / self.tflops / 1e9


def load() -> dict[str, Program]:
    """Return the programs of clock.yaml by name. A program inherits the keys of its group."""
    groups = msgspec.yaml.decode(PROGRAMS.read_bytes())
    given = [
        group["all"] | one | {"group": name}
        for name, group in groups.items()
        for one in group["programs"]
    ]
    return {one.name: one for one in msgspec.convert(given, list[Program])}


# --- programs ------------------------------------------------------------------------------------


def _norm(x: Any, scale: Any, centered: bool = False) -> Any:
    wide = x.astype("float32")
    wide = wide - wide.mean(-1, keepdims=True) if centered else wide
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _rotate(x: Any) -> Any:
    """Apply rotary position embeddings to an array [batch, length, heads, size]."""
    size, positions = x.shape[-1], jnp.arange(x.shape[1], dtype="float32")
    angle = positions[:, None, None] / 1e4 ** (jnp.arange(0, size, 2) / size)
    first, second = jnp.split(x, 2, -1)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )


def _drop(x: Any, key: Any, rate: float) -> Any:
    if not rate:
        return x
    bits = jax.lax.rng_bit_generator(key, x.shape, "uint32")[1]
    return jnp.where(bits > int(rate * 2**32), x / (1 - rate), 0).astype(x.dtype)


def _dense(p: Program, q: Any, k: Any, v: Any, key: Any) -> Any:
    """Compute attention over arrays [batch, heads, length, size]. Decoders use a causal mask."""
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(p.scores) * q.shape[-1] ** -0.5
    if not p.predictions:
        logits = jnp.where(jnp.tri(q.shape[2], dtype=bool), logits, -1e30)
    weights = _drop(jax.nn.softmax(logits, -1).astype(v.dtype), key, p.dropout)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def _flash(p: Program, q: Any, k: Any, v: Any, key: Any) -> Any:
    if not p.tiles:
        return flash.flash_attention(q, k, v)
    rows, major, keys = p.tiles
    backward = {"block_q_major_dkv": rows, "block_k_major_dkv": major, "block_k_dkv": keys}
    backward |= {"block_q_dkv": keys, "block_k_major_dq": major, "block_k_dq": keys}
    sizes = flash.BlockSizes(rows, major, keys, 1, **backward, block_q_dq=keys)
    return flash.flash_attention(q, k, v, causal=True, block_sizes=sizes)


def _splash(p: Program, q: Any, k: Any, v: Any, key: Any) -> Any:
    # The repository tpu-recipes sets this VMEM limit for all ops. In this script, only the kernels
    # get the limit, since it does not change the cycles of XLA's own ops.
    roomy = functools.partial(pltpu.CompilerParams, vmem_limit_bytes=96 << 20)
    splash_attention_kernel.pltpu = types.SimpleNamespace(**vars(pltpu) | {"CompilerParams": roomy})
    heads, length = q.shape[1:3]
    fields = "q kv kv_compute q_dkv kv_dkv kv_dkv_compute"
    sizes = {f"block_{name}": min(p.block, length) for name in fields.split()}
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([splash.CausalMask((length, length))] * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(**sizes, use_fused_bwd_kernel=True),
    )
    return jax.vmap(kernel)(q, k, v)


def _at(x: Any, block: Any) -> Any:
    return jax.lax.dynamic_slice_in_dim(x, block * BLOCK, BLOCK, 2)


def _put(x: Any, block: Any, value: Any) -> Any:
    return jax.lax.dynamic_update_slice_in_dim(x, value.astype(x.dtype), block * BLOCK, 2)


def _scores(q: Any, k: Any, row: Any, column: Any) -> Any:
    rows, columns = (jnp.arange(BLOCK) + BLOCK * block for block in (row, column))
    seen = rows[:, None] >= columns
    return jnp.where(seen, jnp.einsum("bhqd,bhkd->bhqk", q, k), jnp.asarray(-1e10, q.dtype))


def _pairs(step: Any, count: int, backward: bool, state: Any) -> Any:
    """Call `step` for each causal pair of a query block and a key block.

    Each block of queries has its own `fori_loop`. With `backward`, each block of keys has one.
    """
    for one in range(count):
        first, last = (one, count) if backward else (0, one + 1)
        state = jax.lax.fori_loop(first, last, functools.partial(step, one), state)
    return state


@jax.custom_vjp
def _blocks(q: Any, k: Any, v: Any) -> Any:
    """Compute attention in blocks without a kernel, as Levanter does for heads of size 64."""
    return _blocks_forward(q, k, v)[0]


def _blocks_forward(q: Any, k: Any, v: Any) -> Any:
    def step(row: int, column: Any, state: Any) -> Any:
        out, total, most = state
        scores = _scores(_at(q, row), _at(k, column), row, column)
        top = jnp.maximum(_at(most, row), scores.max(-1, keepdims=True))
        weights, slower = jnp.exp(scores - top), jnp.exp(_at(most, row) - top)
        sums = slower * _at(total, row) + weights.sum(-1, keepdims=True)
        more = slower * _at(out, row) + jnp.einsum("bhqk,bhkd->bhqd", weights, _at(v, column))
        return _put(out, row, more), _put(total, row, sums), _put(most, row, top)

    column = jnp.zeros((*q.shape[:3], 1), q.dtype)
    start = (jnp.zeros_like(q), column, column - 1e30)
    out, total, most = _pairs(step, q.shape[2] // BLOCK, False, start)
    out = out / total
    return out, (q, k, v, out, most + jnp.log(total))


def _blocks_backward(kept: Any, given: Any) -> Any:
    q, k, v, out, logs = kept
    means = (given * out).sum(-1, keepdims=True)

    def step(column: int, row: Any, state: Any) -> Any:
        dq, dk, dv = state
        rows, keys, slope = _at(q, row), _at(k, column), _at(given, row)
        weights = jnp.exp(_scores(rows, keys, row, column) - _at(logs, row))
        inner = jnp.einsum("bhqd,bhkd->bhqk", slope, _at(v, column)) - _at(means, row)
        inner = (weights * inner).astype(q.dtype)
        dv = _put(dv, column, _at(dv, column) + jnp.einsum("bhqk,bhqd->bhkd", weights, slope))
        dk = _put(dk, column, _at(dk, column) + jnp.einsum("bhqk,bhqd->bhkd", inner, rows))
        return _put(dq, row, _at(dq, row) + jnp.einsum("bhqk,bhkd->bhqd", inner, keys)), dk, dv

    zeros = jnp.zeros_like(q), jnp.zeros_like(k), jnp.zeros_like(v)
    return _pairs(step, q.shape[2] // BLOCK, True, zeros)


_blocks.defvjp(_blocks_forward, _blocks_backward)
ATTENTION: Mapping[str, Callable[..., Any]] = {
    "dense": _dense,
    "flash": _flash,
    "splash": _splash,
    "blocks": lambda p, q, k, v, key: _blocks(q * q.shape[-1] ** -0.5, k, v),
}


def cross_entropy(x: Any, table: Any, ids: Any, tile: int = 0) -> Any:
    """Return the mean cross entropy.

    Args:
        x: activations [..., width].
        table: output embeddings [vocabulary, width].
        ids: true token ids.
        tile: vocabulary entries whose logits are computed at a time, 0 for all.
    """
    if not tile:
        scores = (x @ table.astype(x.dtype).T).astype("float32")
        right = jnp.take_along_axis(scores, ids[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(scores, -1) - right).mean()
    x, ids, size = x.reshape(-1, x.shape[-1]), ids.reshape(-1), len(table)
    count = -(-size // tile)
    tiles = jnp.pad(table, ((0, count * tile - size), (0, 0))).reshape(count, tile, -1)

    @jax.checkpoint
    def add(total: Any, given: Any) -> Any:
        part, number = given
        scores = jnp.einsum("nd,vd->nv", x, part.astype(x.dtype), preferred_element_type="float32")
        scores = jnp.where(number * tile + jnp.arange(tile) < size, scores, -jnp.inf)
        return jnp.logaddexp(total, jax.nn.logsumexp(scores, -1)), None

    start = jnp.full(len(x), -jnp.inf)
    logs = jax.lax.scan(add, start, (tiles, jnp.arange(count)))[0]
    return (logs - (x * table[ids].astype(x.dtype)).sum(-1).astype("float32")).mean()


def weights_of(p: Program, layers: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's weights by name.

    The weights of all layers are stacked along the first dimension, `layers`.
    """
    size, groups = p.head_size, p.kv_heads or p.heads
    one = {"norm1": (p.width,), "norm2": (p.width,), "q": (p.width, p.heads * size)}
    one |= dict.fromkeys("kv", (p.width, groups * size)) | {"o": (p.heads * size, p.width)}
    one |= {"up": (p.width, p.mlp), "down": (p.mlp, p.width)}
    one |= {"gate": (p.width, p.mlp)} if p.mlp_kind == "gated" else {}
    thin = {name: shape for name, shape in one.items() if len(shape) == 2 and p.rank}
    one |= {f"{name}_a": (shape[0], p.rank) for name, shape in thin.items()}
    one |= {f"{name}_b": (p.rank, shape[1]) for name, shape in thin.items()}
    tree = {f"layer_{name}": (layers, *shape) for name, shape in one.items()}
    tree |= {"table": (p.vocabulary, p.embedding or p.width), "norm": (p.width,)}
    tree |= {"widen": (p.embedding, p.width)} if p.embedding else {}
    tree |= {} if p.tied else {"last": (p.vocabulary, p.width)}
    tables = {"values": (layers // 2, p.vocabulary, groups * size)}
    return tree | (tables if p.value_tables else {})


def _is_trained(p: Program, name: str) -> bool:
    return not p.rank or name.endswith(("_a", "_b"))


def step(p: Program) -> tuple[Any, list[Any]]:
    """Return a function that computes a transformer's loss and gradients, and its input shapes.

    Details that are not documented at the program's `source` are those of a common transformer.
    """

    def look_up(table: Any, ids: Any) -> Any:
        if p.one_hot:
            return jax.nn.one_hot(ids, len(table), dtype=p.dtype) @ table.astype(p.dtype)
        return table[ids].astype(p.dtype)

    def heads(x: Any) -> Any:
        return x.reshape(p.batch, p.length, -1, p.head_size)

    @jax.named_scope(LAYER)
    def layer(x: Any, given: Any, extra: Any = None) -> tuple[Any, None]:
        w, keys = given
        w = {name: value.astype(p.dtype) for name, value in w.items()}
        norm = functools.partial(_norm, centered=p.norm == "layer")

        def product(y: Any, name: str) -> Any:
            thin = (y @ w[f"{name}_a"]) @ w[f"{name}_b"] if p.rank else 0
            return checkpoint_name(y @ w[name] + thin, name)

        y = norm(x, w["norm1"])
        q, k, v = heads(product(y, "q")), heads(product(y, "k")), heads(product(y, "v"))
        if extra is not None:
            v = v + heads(extra)
        if p.rotary:
            q, k = _rotate(q), _rotate(k)
        k, v = (jnp.repeat(each, p.heads // (p.kv_heads or p.heads), 2) for each in (k, v))
        moved = (each.swapaxes(1, 2) for each in (q, k, v))
        y = ATTENTION[p.attention](p, *moved, keys[0]).swapaxes(1, 2)
        x = x + _drop(product(y.reshape(p.batch, p.length, -1), "o"), keys[1], p.dropout)
        y = norm(x, w["norm2"])
        inner = product(y, "up")
        if p.mlp_kind == "gated":
            inner = jax.nn.silu(product(y, "gate")) * inner
        else:
            inner = jax.nn.gelu(inner) if p.mlp_kind == "gelu" else jax.nn.relu(inner) ** 2
        return x + _drop(product(inner, "down"), keys[2], p.dropout), None

    if p.keeps != "all":
        policies = {
            "nothing": None,
            "products": jax.checkpoint_policies.dots_saveable,
            "recipe": jax.checkpoint_policies.save_only_these_names("q", "k", "v", "o"),
        }
        layer = jax.checkpoint(layer, policy=policies[p.keeps])

    def loss(trained: Any, w: Any, ids: Any, places: Any, keys: Any) -> Any:
        w = w | trained
        x = look_up(w["table"], ids)
        x = x @ w["widen"].astype(p.dtype) if p.embedding else x
        x = _drop(x, keys[0, 0], p.dropout)
        stack = {name[6:]: value for name, value in w.items() if name.startswith("layer_")}
        for number in range(p.compiled):
            given = {name: value[number] for name, value in stack.items()}, keys[number]
            has_values = p.value_tables and number % 2
            more = (look_up(w["values"][number // 2], ids),) if has_values else ()
            x = layer(x, given, *more)[0]
        last = w.get("last", w["table"])
        x, labels = _norm(x, w["norm"].astype(p.dtype)), jnp.roll(ids, -1, 1)
        if p.predictions:
            x = jnp.take_along_axis(x, places[..., None], 1)
            labels = jnp.take_along_axis(ids, places, 1)
        x = x @ w["widen"].astype(p.dtype).T if p.embedding else x
        if p.parts == 1:
            return cross_entropy(x, last, labels, p.tile)
        shape = (p.parts, -1)
        each = x.reshape(*shape, x.shape[-1]), labels.reshape(*shape)
        part = jax.checkpoint(lambda sum_, one: (sum_ + cross_entropy(one[0], last, one[1]), None))
        return jax.lax.scan(part, jnp.float32(0), each)[0]

    kind = "bfloat16" if p.rank else p.weights
    weights = {name: (shape, kind) for name, shape in weights_of(p, p.compiled).items()}
    trained, frozen = (
        {name: one for name, one in weights.items() if _is_trained(p, name) is which}
        for which in (True, False)
    )
    given: list[Any] = [trained, frozen, ((p.batch, p.length), "int32")]
    given += [((p.batch, p.predictions), "int32"), ((p.compiled, 3, 4), "uint32")]
    return jax.value_and_grad(loss) if p.gradient else loss, given


def matmul(p: Program) -> tuple[Any, list[Any]]:
    """Return a function that multiplies two matrices, and its input shapes.

    With `tiles` it calls the Pallas kernel of JAX's documentation, otherwise XLA's product.
    """
    shape = [((p.size, p.size), p.dtype)] * 2
    act = jax.nn.relu if p.relu else lambda x: x
    if not p.tiles:
        return lambda x, y: act(x @ y), shape
    rows, inner, columns = p.tiles

    def kernel(x: Any, y: Any, z: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        dims = (((1,), (1 if p.transposed else 0,)), ((), ()))
        total[...] += jax.lax.dot_general(x[...], y[...], dims, preferred_element_type="float32")

        @pl.when(pl.program_id(2) == p.size // inner - 1)
        def _() -> None:
            z[...] = act(total[...]).astype(z.dtype)

    right = (columns, inner) if p.transposed else (inner, columns)
    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            in_specs=[
                pl.BlockSpec((rows, inner), lambda i, j, k: (i, k)),
                pl.BlockSpec(right, lambda i, j, k: (j, k) if p.transposed else (k, j)),
            ],
            out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
            scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
            grid=(p.size // rows, p.size // columns, p.size // inner),
        ),
        out_shape=jax.ShapeDtypeStruct((p.size, p.size), jnp.bfloat16),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )
    return call, shape


def copy(p: Program) -> tuple[Any, list[Any]]:
    """Return a function that copies an array in HBM, and its input shape."""
    return jnp.copy, [(p.shape, "bfloat16")]


def loss_alone(p: Program) -> tuple[Any, list[Any]]:
    """Return a function that computes a loss and its gradients, and the function's input shapes.

    The gradients are with respect to the activations and the embedding table.
    """
    tokens, width, vocabulary = p.shape
    arrays = [((tokens, width), "bfloat16"), ((vocabulary, width), "float32"), ((tokens,), "int32")]
    return jax.value_and_grad(functools.partial(cross_entropy, tile=p.tile), (0, 1)), arrays


def attention_alone(p: Program) -> tuple[Any, list[Any]]:
    """Return a function that computes attention (or its gradients), and its input shapes."""
    attend = functools.partial(ATTENTION[p.attention], p, key=None)
    total = lambda q, k, v: attend(q, k, v).astype("float32").sum()  # noqa: E731
    return jax.grad(total, (0, 1, 2)) if p.backward else attend, [(p.shape, "bfloat16")] * 3


WRITERS = {
    "step": step,
    "matmul": matmul,
    "copy": copy,
    "loss": loss_alone,
    "attention": attention_alone,
}


# --- counts --------------------------------------------------------------------------------------


@functools.cache
def _listings() -> Path:
    """Create the folder in which libtpu lists machine code.

    libtpu reads the flag that names the folder only when libtpu is loaded. So the folder is created
    only once.
    """
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    os.environ |= compiler.ENVIRONMENT
    os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.format_flags(folder)}"
    jax.config.update("jax_platforms", "cpu")
    return Path(folder)


def _is_shape(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str)


def lower(function: Any, shapes: Any, target: compiler.Target) -> Any:
    """Lower a function for one device. `shapes` contains its arguments as (shape, dtype)."""
    _listings()
    place = SingleDeviceSharding(compiler.find_devices(target.topology, target.options)[0])
    arrays = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(*one, sharding=place), shapes, is_leaf=_is_shape
    )
    return jax.jit(function).lower(*arrays)


def target_of(p: Program) -> compiler.Target:
    """Return the device for which a program is compiled."""
    is_joined = p.chip in MEGACORE and not p.core
    return (
        compiler.find_slice(MEGACORE[p.chip].topology) if is_joined else compiler.find_chip(p.chip)
    )


def count(
    lowered: Any,
    target: compiler.Target,
    options: Mapping[str, str] | None = None,
    trips: Sequence[Sequence[float]] = (),
) -> dict[str, Counts]:
    """Compile a program, and count the milliseconds of its layers and of its other ops.

    Args:
        lowered: program for one device.
        target: the device.
        options: options of the compiler.
        trips: for each kernel, the mean trip counts of its loops that depend on data.
    """
    folder = _listings()
    # Remove the listings of the previous program.
    for file in folder.iterdir():
        file.unlink()
    compiled = lowered.compile(compiler_options=options)
    module = hlo.parse(compiler.read_optimized(compiled, folder))
    listed = machine_code.collect(str(folder), trips)
    code = roofline.combine_costs(module, costs.price_module(module), listed, target.chip)
    if reason := roofline.find_uncounted(code):
        raise ValueError(reason)
    waiting = roofline.sum_step_time(module, code, target.chip).waiting
    inside = [one for one in code if LAYER in one.instruction.op_name]
    outside = [one for one in code if LAYER not in one.instruction.op_name]
    parts = {"layer": roofline.sum_inputs(inside), "rest": roofline.sum_inputs(outside)}
    parts["layer" if parts["layer"]["code"] else "rest"]["code"] += waiting
    to_ms = 1e3 / target.chip.clock_hz
    return {part: {key: n * to_ms for key, n in each.items()} for part, each in parts.items()}


def compile_parts(p: Program) -> dict[str, Counts]:
    """Compile a program, and return the counts of its layers ("layer") and other ops ("rest")."""
    target = target_of(p)
    parts = count(lower(*WRITERS[p.kind](p), target), target, p.options or None)
    # A splash attention kernel skips the blocks that its mask excludes. The count includes these
    # blocks, so multiply it by the fraction of blocks that a causal mask keeps.
    if p.attention == "splash":
        length = p.length or p.shape[2]
        blocks = length // min(p.block, length)
        for counts in parts.values():
            counts["kernels"] *= (blocks + 1) / 2 / blocks
    return {part: {key: round(n, 5) for key, n in each.items()} for part, each in parts.items()}


def flops(p: Program) -> float:
    """Count the floating-point operations in a microstep of one device."""
    matrices = {name: shape for name, shape in weights_of(p, 1).items() if len(shape) > 1}
    layer = sum(math.prod(shape[1:]) for name, shape in matrices.items() if "layer_" in name)
    seen = p.length if p.predictions else p.length / 2
    work = p.layers * (2 * layer + 4 * seen * p.heads * p.head_size) * p.tokens
    again = p.again * (4 / 3 if p.keeps == "nothing" else 1)
    ends: float = 2 * p.logits * p.width
    # The product with one-hot ids is computed twice, not three times, because ids have no gradient.
    ends += 2 * p.tokens * math.prod(matrices["table"]) * p.one_hot * 2 / 3
    return ((2 if p.rank else 3) if p.gradient else 1) * (again * work + ends)


def total(p: Program, programs: Mapping[str, Program], known: Mapping[str, Any]) -> Counts | None:
    """Compute the counts of a program on one device of its slice.

    Returns:
        The counts, or None if they cannot be computed from the stored counts.
    """
    own = programs[p.like or p.name]
    if own.name in known:
        layer, rest = (known[own.name][part] for part in ("layer", "rest"))
        if p.kind != "step":
            return dict(rest)
        deep = p.layers / own.compiled * p.tokens / own.tokens * (p.again if p.like else 1)
        counts = {key: deep * layer[key] + p.logits / own.logits * rest[key] for key in rest}
    elif own.work_of:
        other = programs[own.work_of]
        counted = total(other, programs, known)
        if counted is None:
            return None
        again = p.again * (own.again if p.like else 1)
        ratio = flops(msgspec.structs.replace(p, again=again)) / CHIPS[p.chip].peak_flops
        ratio /= flops(other) * other.microsteps / CHIPS[other.chip].peak_flops
        counts = {key: ratio * counted[key] for key in ("kernels", "code", "estimate")}
    else:
        return None
    counts = {key: p.microsteps * p.extra * value for key, value in counts.items()} | traffic(p)
    for name in p.also:
        same = {key: getattr(p, key) for key in ("batch", "length", "predictions", "vocabulary")}
        also = msgspec.structs.replace(programs[name], **same, like=name)
        added = total(also, programs, known)
        if added is None:
            return None
        counts = {key: value + added[key] for key, value in counts.items()}
    return counts


def traffic(p: Program) -> Counts:
    """Return the milliseconds of the optimizer's update in HBM, and of transfers between chips."""
    target = compiler.find_slice(p.slice or CHIPS[p.chip].topology)
    devices = target.devices if p.slice else 1
    shapes = weights_of(p, p.layers).items()
    weights = sum(math.prod(shape) for name, shape in shapes if _is_trained(p, name))
    moved = weights / (devices if p.divided else 1) * UPDATE_BYTES[p.optimizer]
    # Sharded weights are gathered twice, and their gradients are scattered, layer by layer in
    # bfloat16. Without sharding, there is one all-reduce of float32 gradients.
    sent = weights * (3 * 2 * p.microsteps if p.divided else 2 * 4) * (1 - 1 / devices)
    hops = 3 * p.layers * p.microsteps if p.divided else 1
    links = predict_link_seconds(target.chip, p.slice, sent, hops) if devices > 1 else 0.0
    return {"update": moved / target.chip.hbm_bytes_per_second * 1e3, "links": links * 1e3}


# --- the time of a step --------------------------------------------------------------------------


def predicted_ms(p: Program, counts: Counts, reached: float = measured.REACHED) -> float:
    """Predict the milliseconds of a program.

    Transfers between chips add time only if they take longer than the rest of the step.
    """
    kernels, code, estimate = (counts[key] / 1e3 for key in ("kernels", "code", "estimate"))
    seconds = measured.predict_device_seconds(kernels, code, estimate, reached)
    if p.kind != "step":
        return seconds * 1e3 + (0.0 if p.on_device else DISPATCH_MS)
    busy = max(seconds * 1e3 + counts["update"], counts["links"])
    return busy + measured.HOST_SECONDS * 1e3


def fit(steps: Sequence[Program], counts: Mapping[str, Counts]) -> float:
    """Fit `measured.REACHED`, the median of published times divided by times from counted cycles.

    Each source (the programs of one repository on one chip) has the same weight.
    """
    ratios = []
    for p in steps:
        fixed, whole = (predicted_ms(p, counts[p.name], reached) for reached in (0.0, 1.0))
        ratios.append(((p.published_ms or 0.0) - fixed) / max(whole - fixed, 1e-9))
    return quantile(steps, ratios, 0.5)


def quantile(steps: Sequence[Program], values: Sequence[float], q: float) -> float:
    """Return a weighted quantile. All values of a source together have the weight 1."""
    sizes = collections.Counter(p.errs_with for p in steps)
    pairs = sorted((value, 1 / sizes[p.errs_with]) for p, value in zip(steps, values, strict=True))
    ordered, weights = np.array(pairs).T
    return float(np.interp(q, (np.cumsum(weights) - weights / 2) / weights.sum(), ordered))


def judge(steps: Sequence[Program], counts: Mapping[str, Counts]) -> list[float]:
    """Return each step's published time divided by its predicted time.

    The constant of a prediction is fitted to all sources except the step's own.
    """
    fitted = {
        source: fit([p for p in steps if p.errs_with != source], counts)
        for source in {p.errs_with for p in steps}
    }
    return [
        (p.published_ms or 0.0) / predicted_ms(p, counts[p.name], fitted[p.errs_with])
        for p in steps
    ]


def interval(steps: Sequence[Program], ratios: Sequence[float]) -> tuple[float, float]:
    """Return the interval that contains 80 % of the ratios of `judge`."""
    return quantile(steps, ratios, 0.1), quantile(steps, ratios, 0.9)


def is_inside(ratio: float) -> bool:
    """Return whether a ratio of published to predicted time is within `measured.INTERVAL`."""
    return measured.INTERVAL[0] <= ratio <= measured.INTERVAL[1]


# --- the page ------------------------------------------------------------------------------------


def tables(programs: Mapping[str, Program], counts: Mapping[str, Counts]) -> list[str]:
    """Return the lines of the tables in docs/lab/clock.md."""
    steps = [p for p in programs.values() if p.kind == "step" and p.published_ms]
    steps = [p for p in steps if p.name in counts]
    ratios = judge(steps, counts)
    sources = list(dict.fromkeys(p.errs_with for p in steps))
    low, high = interval(steps, ratios)
    lines = [
        f"{len(steps)} steps of {len(sources)} sources. Fitted to all of them:"
        f" REACHED {fit(steps, counts):.3f}; interval {low:.2f} to {high:.2f}.",
        "",
        *_head("left out", "steps", "published / predicted", "median error", "within the interval"),
    ]
    for source in sources:
        own = [r for p, r in zip(steps, ratios, strict=True) if p.errs_with == source]
        spread = f"{min(own):.2f} to {max(own):.2f}"
        error = f"{statistics.median(abs(ratio - 1) for ratio in own):.0%}"
        lines.append(_row(", ".join(source), len(own), spread, error, sum(map(is_inside, own))))
    then = "predicted then", "interval then"
    lines += ["", *_head("set 1", *then, "published", "held", "by the formula")]
    for entry in json.loads(BLIND[1].read_text(encoding="utf-8")):
        p, ends = programs[entry["name"]], entry.get("interval_ms")
        real = p.published_ms or 0.0
        held = "" if not ends else "yes" if ends[0] <= real <= ends[1] else "no"
        now = _time(predicted_ms(p, counts[p.name])) if p.name in counts else "not compiled"
        was = _time(entry["prediction_ms"]), _ends(ends)
        lines.append(_row(f"[{p.name}]({p.source})", *was, _time(real), held, now))
    lines += ["", *_head("set 2", "prediction, ms", "interval", "by")]
    for entry in json.loads(BLIND[2].read_text(encoding="utf-8")):
        was = _time(entry["prediction_ms"]), _ends(entry["interval_ms"])
        lines.append(_row(entry["name"], *was, entry["method"]))
    return lines


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|---" * len(cells) + "|"]


def _row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _time(milliseconds: float | None) -> str:
    return f"{milliseconds:.4g}" if milliseconds else ""


def _ends(ends: Sequence[float] | None) -> str:
    return " to ".join(map(_time, ends)) if ends else ""


def draw(pairs: Sequence[tuple[Program, float]]) -> None:
    """Draw published against predicted times on logarithmic axes."""
    figure = Figure(figsize=(7, 6))
    axes = figure.subplots()
    for source in dict.fromkeys(p.errs_with for p, _ in pairs):
        times = [(now, p.published_ms) for p, now in pairs if p.errs_with == source]
        axes.scatter(*zip(*times, strict=True), label=", ".join(source), alpha=0.8)
    shown = [value for p, now in pairs for value in (p.published_ms or now, now)]
    ends = (0.6 * min(shown), 1.7 * max(shown))
    axes.plot(ends, ends, color="black", linewidth=0.8)
    low, high = measured.INTERVAL
    axes.fill_between(ends, [low * end for end in ends], [high * end for end in ends], alpha=0.12)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("predicted, milliseconds")
    axes.set_ylabel("published, milliseconds")
    axes.set_title("Public programs on real TPUs: line = equal, band = the interval")
    axes.legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


def all_counts(programs: Mapping[str, Program]) -> dict[str, Counts]:
    """Return the counts of all programs that can be computed from the stored counts."""
    known = json.loads(CACHE.read_text(encoding="utf-8"))
    totals = {name: total(p, programs, known) for name, p in programs.items()}
    return {name: found for name, found in totals.items() if found is not None}


def main() -> None:
    """Compile the programs without stored counts, and rewrite docs/lab/clock.md and its picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="compile programs whose name contains this")
    parser.add_argument("--report", action="store_true", help="compile nothing")
    args = parser.parse_args()
    programs = load()
    for p in () if args.report else programs.values():
        known = json.loads(CACHE.read_text(encoding="utf-8"))
        if args.only in p.name and not p.like and p.name not in known:
            log(f"{p.name} ...")
            known[p.name] = compile_parts(p)
            CACHE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    counts = all_counts(programs)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join(tables(programs, counts)) + "\n"
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    priced = [p for p in programs.values() if p.name in counts and p.published_ms]
    draw([(p, predicted_ms(p, counts[p.name])) for p in priced])


if __name__ == "__main__":
    main()
