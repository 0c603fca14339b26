"""Price public programs as `preflight` does, and judge the time of a step: `make bench-clock`.

    python -m scripts.clock [--only NAME]

scripts/clock.yaml describes the programs. This module writes each for one device, compiles it with
one layer (or two), and stores its counts in docs/lab/clock.json; stored counts are not made again.
A step is extrapolated to its depth. The update of its weights counts by bytes, traffic between
chips by published rates of links.

Then it compares `measured.step_seconds` with the published times. `fit` computes the constants of
that function from all sources but one, and judges them by that one. The tables and the picture of
docs/lab/clock.md, and the predictions of programs without a time (docs/lab/clock_blind2.json), are
written anew.
"""

import argparse
import atexit
import collections
import datetime
import functools
import json
import math
import os
import shutil
import statistics
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
from jax.sharding import SingleDeviceSharding
from matplotlib.figure import Figure

from bigbird_ja.accelerators import measured
from bigbird_ja.accelerators.chips import CHIPS, MEGACORE, link_seconds
from bigbird_ja.model import pattern
from bigbird_ja.model.kernels import backward_kernel, forward_kernel
from bigbird_ja.model.kernels.layer_shape import ORDERS, LayerShape, Order, tile_rows
from bigbird_ja.preflight import compile as compiler
from bigbird_ja.preflight import costs, estimate, hlo, machine_code, roofline
from bigbird_ja.process.console import log
from bigbird_ja.settings.resolve import base_layers, given_layers, resolve_config

PROGRAMS = Path(__file__).with_name("clock.yaml")
CACHE, PAGE = Path("docs/lab/clock.json"), Path("docs/lab/clock.md")
BLIND = {
    number: Path(f"docs/lab/clock_blind{number if number > 1 else ''}.json") for number in (1, 2)
}
PICTURE = Path("docs/images/clock.png")
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
DISPATCH_MS = 0.115  # calibrated: a call from Python, waited for
UPDATE_BYTES = {"adam": 28, "lamb": 40, "none": 0}  # of a parameter, read and written in HBM
LAYER = "one_layer"  # scope of a layer's ops
COUNTS = ("kernels", "code", "estimate", "matrix", "uncounted")  # kernels are not in the others
KERNEL_TOKENS = 16384  # of a kernel of ours
BLOCK = 1024  # of attention in blocks, without a kernel
Spec = dict[str, Any]
Counts = dict[str, float]
DEFAULTS: Spec = {
    "kv_heads": 0, "mlp_kind": "gated", "norm": "rms", "rotary": True, "attention": "dense",
    "window": 0, "scores": "float32", "dtype": "bfloat16", "weights": "float32", "keeps": "all",
    "compiled": 1, "core": False, "tied": False, "parts": 1, "predictions": 0, "dropout": 0.0,
    "one_hot": False, "embedding": 0, "rank": 0, "value_tables": False, "gradient": True,
    "optimizer": "adam", "microsteps": 1, "divided": False, "extra": 1.0, "also": [],
    "again": 1.0, "block": 512,
}  # fmt: skip


def load() -> list[Spec]:
    """Read the programs, each with the defaults of its group, whose name is the source."""
    groups = yaml.safe_load(PROGRAMS.read_text(encoding="utf-8"))
    specs = [
        DEFAULTS | group["all"] | one | {"group": name}
        for name, group in groups.items()
        for one in group["programs"]
    ]
    for spec in specs:
        if spec["kind"] == "step":
            spec.setdefault("size", spec["width"] // spec["heads"])
    return specs


# --- programs ------------------------------------------------------------------------------------


def _norm(x: Any, scale: Any, centered: bool = False) -> Any:
    wide = x.astype("float32")
    wide = wide - wide.mean(-1, keepdims=True) if centered else wide
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _rotate(x: Any) -> Any:
    """Rotate [batch, length, heads, size] by position."""
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


def _dense(q: Any, k: Any, v: Any, spec: Spec, key: Any) -> Any:
    """Attend over [batch, heads, length, size].

    Encoders see all, decoders what came before.
    """
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(spec["scores"]) * q.shape[-1] ** -0.5
    if not spec["predictions"]:
        logits = jnp.where(jnp.tri(q.shape[2], dtype=bool), logits, -1e30)
    weights = _drop(jax.nn.softmax(logits, -1).astype(v.dtype), key, spec["dropout"])
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def _flash(q: Any, k: Any, v: Any, spec: Spec, key: Any = None) -> Any:
    if not spec.get("tiles"):
        return flash.flash_attention(q, k, v)
    rows, major, keys = spec["tiles"]
    backward = {"block_q_major_dkv": rows, "block_k_major_dkv": major, "block_k_dkv": keys}
    backward |= {"block_q_dkv": keys, "block_k_major_dq": major, "block_k_dq": keys}
    sizes = flash.BlockSizes(rows, major, keys, 1, **backward, block_q_dq=keys)
    return flash.flash_attention(q, k, v, causal=True, block_sizes=sizes)


def _splash(q: Any, k: Any, v: Any, spec: Spec, key: Any = None) -> Any:
    # The memory that recipes set for all ops; XLA's own ops take as many cycles with it.
    roomy = functools.partial(pltpu.CompilerParams, vmem_limit_bytes=96 << 20)
    splash_attention_kernel.pltpu = types.SimpleNamespace(**vars(pltpu) | {"CompilerParams": roomy})
    heads, length, window = q.shape[1], q.shape[2], spec["window"]
    shape = (length, length)
    mask = splash.LocalMask(shape, (window, 0), 0) if window else splash.CausalMask(shape)
    fields = "q kv kv_compute q_dkv kv_dkv kv_dkv_compute"
    sizes = {f"block_{name}": min(spec["block"], length) for name in fields.split()}
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * heads),
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
    """Run over the pairs of causal blocks, a loop for each block of queries (or of keys)."""
    for one in range(count):
        first, last = (one, count) if backward else (0, one + 1)
        state = jax.lax.fori_loop(first, last, functools.partial(step, one), state)
    return state


@jax.custom_vjp
def _blocks(q: Any, k: Any, v: Any) -> Any:
    """Attend in blocks without a kernel, as Levanter does for heads of 64."""
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
ATTENTION: Mapping[str, Any] = {
    "dense": _dense,
    "flash": _flash,
    "splash": _splash,
    "blocks": lambda q, k, v, spec, key: _blocks(q * q.shape[-1] ** -0.5, k, v),
}


def cross_entropy(x: Any, table: Any, ids: Any, tile: int = 0) -> Any:
    """Return the mean cross entropy.

    With `tile`, of so many logits of a token at a time.
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


def weights_of(spec: Spec, layers: int) -> dict[str, Any]:
    """Return shapes and dtypes of a model's weights, by name.

    Those of layers are stacked.
    """
    width, mlp, heads, size = (spec[key] for key in ("width", "mlp", "heads", "size"))
    groups = spec["kv_heads"] or heads
    one = {"norm1": (width,), "norm2": (width,), "q": (width, heads * size)}
    one |= {"k": (width, groups * size), "v": (width, groups * size), "o": (heads * size, width)}
    one |= {"up": (width, mlp), "down": (mlp, width)}
    one |= {"gate": (width, mlp)} if spec["mlp_kind"] == "gated" else {}
    thin = {name: shape for name, shape in one.items() if len(shape) == 2 and spec["rank"]}
    narrow = spec["embedding"] or width
    whole = {"table": (spec["vocabulary"], narrow), "norm": (width,)}
    whole |= {"widen": (narrow, width)} if spec["embedding"] else {}
    whole |= {} if spec["tied"] else {"last": (spec["vocabulary"], width)}
    kind = "bfloat16" if spec["rank"] else spec["weights"]
    tree: dict[str, Any] = {name: (shape, kind) for name, shape in whole.items()}
    every = one | {f"{name}_a": (shape[0], spec["rank"]) for name, shape in thin.items()}
    every |= {f"{name}_b": (spec["rank"], shape[1]) for name, shape in thin.items()}
    if spec["value_tables"]:  # of every other layer
        tree["values"] = ((layers // 2, spec["vocabulary"], groups * size), kind)
    return tree | {f"layer_{name}": ((layers, *shape), kind) for name, shape in every.items()}


def step(spec: Spec) -> tuple[Any, list[Any]]:
    """Write the loss of a transformer and its gradients, as far as its page describes them."""
    batch, length, size = spec["batch"], spec["length"], spec["size"]
    groups, dtype = spec["kv_heads"] or spec["heads"], spec["dtype"]
    layers = spec["compiled"]

    def look_up(table: Any, ids: Any) -> Any:
        if spec["one_hot"]:
            return jax.nn.one_hot(ids, len(table), dtype=dtype) @ table.astype(dtype)
        return table[ids].astype(dtype)

    def heads(x: Any) -> Any:
        return x.reshape(batch, length, -1, size)

    @jax.named_scope(LAYER)
    def layer(x: Any, given: Any, extra: Any = None) -> tuple[Any, None]:
        w, keys = given
        w = {name: value.astype(dtype) for name, value in w.items()}
        norm = functools.partial(_norm, centered=spec["norm"] == "layer")

        def product(y: Any, name: str) -> Any:
            thin = (y @ w[f"{name}_a"]) @ w[f"{name}_b"] if spec["rank"] else 0
            return checkpoint_name(y @ w[name] + thin, name)

        y = norm(x, w["norm1"])
        q, k, v = heads(product(y, "q")), heads(product(y, "k")), heads(product(y, "v"))
        if extra is not None:
            v = v + heads(extra)
        if spec["rotary"]:
            q, k = _rotate(q), _rotate(k)
        k, v = (jnp.repeat(each, spec["heads"] // groups, 2) for each in (k, v))
        moved = (each.swapaxes(1, 2) for each in (q, k, v))
        y = ATTENTION[spec["attention"]](*moved, spec, keys[0]).swapaxes(1, 2)
        x = x + _drop(product(y.reshape(batch, length, -1), "o"), keys[1], spec["dropout"])
        y = norm(x, w["norm2"])
        inner = product(y, "up")
        if spec["mlp_kind"] == "gated":
            inner = jax.nn.silu(product(y, "gate")) * inner
        else:
            inner = jax.nn.gelu(inner) if spec["mlp_kind"] == "gelu" else jax.nn.relu(inner) ** 2
        return x + _drop(product(inner, "down"), keys[2], spec["dropout"]), None

    if spec["keeps"] != "all":
        policies = {
            "nothing": None,
            "products": jax.checkpoint_policies.dots_saveable,
            "recipe": jax.checkpoint_policies.save_only_these_names("q", "k", "v", "o"),
        }
        layer = jax.checkpoint(layer, policy=policies[spec["keeps"]])

    def loss(trained: Any, w: Any, ids: Any, places: Any, keys: Any) -> Any:
        w = w | trained
        x = look_up(w["table"], ids)
        x = x @ w["widen"].astype(dtype) if spec["embedding"] else x
        x = _drop(x, keys[0, 0], spec["dropout"])
        stack = {name[6:]: value for name, value in w.items() if name.startswith("layer_")}
        for number in range(layers):
            given = {name: value[number] for name, value in stack.items()}, keys[number]
            has_values = spec["value_tables"] and number % 2
            more = (look_up(w["values"][number // 2], ids),) if has_values else ()
            x = layer(x, given, *more)[0]
        last = w.get("last", w["table"])
        x, labels = _norm(x, w["norm"].astype(dtype)), jnp.roll(ids, -1, 1)
        if spec["predictions"]:
            x = jnp.take_along_axis(x, places[..., None], 1)
            labels = jnp.take_along_axis(ids, places, 1)
        x = x @ w["widen"].astype(dtype).T if spec["embedding"] else x
        if spec["parts"] == 1:
            return cross_entropy(x, last, labels, spec.get("tile", 0))
        shape = (spec["parts"], -1)
        each = x.reshape(*shape, x.shape[-1]), labels.reshape(*shape)
        part = jax.checkpoint(lambda sum_, one: (sum_ + cross_entropy(one[0], last, one[1]), None))
        return jax.lax.scan(part, jnp.float32(0), each)[0]

    weights = weights_of(spec, layers)
    is_trained = {n: not spec["rank"] or n.endswith(("_a", "_b")) for n in weights}
    trained, frozen = (
        {name: shape for name, shape in weights.items() if is_trained[name] is one}
        for one in (True, False)
    )
    given: list[Any] = [trained, frozen, ((batch, length), "int32")]
    given += [((batch, spec["predictions"]), "int32"), ((layers, 3, 4), "uint32")]
    return jax.value_and_grad(loss) if spec["gradient"] else loss, given


def matmul(spec: Spec) -> tuple[Any, list[Any]]:
    """Write a product: XLA's, or the kernel of JAX's documentation."""
    size, tiles = spec["size"], spec.get("tiles")
    shape = [((size, size), spec.get("dtype", "bfloat16"))] * 2
    act = jax.nn.relu if spec.get("relu") else lambda x: x
    if tiles is None:
        return lambda x, y: act(x @ y), shape
    rows, inner, columns = tiles
    turned = spec.get("transposed", False)

    def kernel(x: Any, y: Any, z: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        dims = (((1,), (1 if turned else 0,)), ((), ()))
        total[...] += jax.lax.dot_general(x[...], y[...], dims, preferred_element_type="float32")

        @pl.when(pl.program_id(2) == size // inner - 1)
        def _() -> None:
            z[...] = act(total[...]).astype(z.dtype)

    right = (columns, inner) if turned else (inner, columns)
    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            in_specs=[
                pl.BlockSpec((rows, inner), lambda i, j, k: (i, k)),
                pl.BlockSpec(right, lambda i, j, k: (j, k) if turned else (k, j)),
            ],
            out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
            scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
            grid=(size // rows, size // columns, size // inner),
        ),
        out_shape=jax.ShapeDtypeStruct((size, size), jnp.bfloat16),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )
    return call, shape


def op(spec: Spec) -> tuple[Any, list[Any]]:
    """Write attention, a loss with gradients, or a copy."""
    dims = spec["shape"]
    if spec["kind"] == "copy":
        return jnp.copy, [(tuple(dims), "bfloat16")]
    if spec["kind"] == "loss":
        tokens, width, vocabulary = dims
        arrays: list[Any] = [((tokens, width), "bfloat16"), ((vocabulary, width), "float32")]
        loss = functools.partial(cross_entropy, tile=spec.get("tile", 0))
        return jax.value_and_grad(loss, (0, 1)), [*arrays, ((tokens,), "int32")]
    attend = ATTENTION[spec["attention"]]
    arrays = [(tuple(dims), "bfloat16")] * 3
    if not spec.get("backward"):
        return lambda q, k, v: attend(q, k, v, spec, None), arrays
    total = lambda q, k, v: attend(q, k, v, spec, None).astype("float32").sum()  # noqa: E731
    return jax.grad(total, (0, 1, 2)), arrays


def layer_kernel(spec: Spec) -> tuple[Any, list[Any]]:
    """Write a kernel of ours: BigBird's layers (`rolled`), ModernBERT's global or local ones.

    Cycles of one layer for `KERNEL_TOKENS` tokens, with the package's tiles and order of work.
    Only ModernBERT's keep documents apart, as in the presets.
    """
    shape = kernel_shape(spec["what"], spec["size"], spec["length"], spec["backward"])
    arrays: list[Any] = [(shape.sequence, shape.dtype)] * (5 if shape.is_backward else 3)
    arrays += [(shape.statistics, "float32")] if shape.is_backward else []
    arrays += [(shape.key_marks, "int32" if shape.has_documents else "float32")]
    arrays += [(shape.query_marks, "int32")] if shape.has_documents else []
    arrays += [(shape.bounds, "int32")] if shape.runs else []
    arrays += [((shape.heads * shape.num_shifts,), "int32")] if shape.num_shifts else []
    make = backward_kernel.backward if shape.is_backward else forward_kernel.forward
    return make(shape), arrays


def kernel_shape(what: str, size: int, length: int, backward: bool) -> LayerShape:
    """Return the shape of a base model's layer with heads of a size."""
    heads, num_shifts = 768 // size, None
    order: Order | None = ORDERS[what][backward]
    reach = 64 if what == "local" else None
    rows = tile_rows(length, reach)
    if what == "rolled":
        sets = {"make_data.seq_length": length, "model.num_attention_heads": heads}
        config, _ = resolve_config([*base_layers("base-4096"), *given_layers(sets)])
        plans = pattern.random_plan(config, length)
        rows, num_shifts = (256, None) if plans is None else (128, plans.shape[2])
        order = None if plans is None else order
    sizes = KERNEL_TOKENS // length, length // rows, heads, size, rows
    has_documents = what != "rolled"
    return LayerShape(*sizes, num_shifts, has_documents, "bfloat16", reach, backward, order)


WRITERS = {
    "kernel": layer_kernel,
    "step": step,
    "matmul": matmul,
    "copy": op,
    "loss": op,
    "attention": op,
}


# --- counts --------------------------------------------------------------------------------------


@functools.cache
def _listings() -> Path:
    """Make the folder for libtpu's listings.

    Libtpu reads its name once, when it is loaded.
    """
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    os.environ |= compiler.ENVIRONMENT
    os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(folder)}"
    jax.config.update("jax_platforms", "cpu")
    return Path(folder)


def _is_shape(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str)


def compile_parts(spec: Spec) -> dict[str, Counts]:
    """Compile a program for one device.

    Count its milliseconds in layers and in the rest.
    """
    folder = _listings()
    for file in folder.iterdir():  # of the program before
        file.unlink()
    name = spec["chip"]
    joined = name in MEGACORE and not spec["core"]
    target = compiler.of_topology(MEGACORE[name].topology) if joined else compiler.of_chip(name)
    place = SingleDeviceSharding(compiler.devices_of(target.topology, target.options)[0])
    program, shapes = WRITERS[spec["kind"]](spec)
    arrays = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(*one, sharding=place), shapes, is_leaf=_is_shape
    )
    compiled = jax.jit(program).lower(*arrays).compile(compiler_options=spec.get("options"))
    module = hlo.parse(compiler.optimized(compiled, folder))
    priced = costs.costs(module)
    trips: list[tuple[float, ...]] = []
    if spec["kind"] == "kernel":
        shape = kernel_shape(spec["what"], spec["size"], spec["length"], spec["backward"])
        trips = [estimate.mean_trips(shape, estimate.STATED_LENGTHS)[0]] if shape.runs else []
    listed = machine_code.collect(str(folder), trips)
    code = roofline.code_costs(module, priced, listed, target.chip)
    if reason := roofline.not_counted(code):
        raise ValueError(reason)
    time = roofline.step_time(module, code, target.chip)
    parts = {part: dict.fromkeys(COUNTS, 0.0) for part in ("layer", "rest")}
    for one in code:
        op = one.instruction
        counts = parts["layer" if LAYER in op.op_name else "rest"]
        if roofline.is_kernel(one):
            counts["kernels"] += one.cycles * _blocks_share(spec)
            continue
        counts["code"] += one.cycles
        counts["estimate"] += one.estimated + one.priced
        counts["matrix"] += one.cycles * (one.bound_by == "matrix unit")
        counts["uncounted"] += one.cycles * (one.bundle_cycles is None)
    parts["layer" if parts["layer"]["code"] else "rest"]["code"] += time.waiting
    to_ms = 1e3 / target.chip.clock_hz
    return {
        part: {key: round(n * to_ms, 5) for key, n in each.items()} for part, each in parts.items()
    }


def _blocks_share(spec: Spec) -> float:
    """Return the share of a splash kernel's blocks that its mask, data to it, doesn't leave out."""
    if spec.get("attention") != "splash":
        return 1.0
    length = spec["length"] if "length" in spec else spec["shape"][2]
    block = min(spec["block"], length)
    count = length // block
    reach = -(-int(spec["window"] or length) // block)
    return sum(min(row, reach) + 1 for row in range(count)) / count / min(count, reach + 1)


def tokens(spec: Spec) -> int:
    """Count a device's tokens in a microstep."""
    return int(spec["batch"] * spec["length"])


def scores(spec: Spec) -> int:
    """Count the scores of the loss, which the work outside of layers is in proportion to."""
    length = spec["predictions"] or spec["length"]
    return int(spec["batch"] * length * spec["vocabulary"])


def flops(spec: Spec) -> float:
    """Count the floating-point operations of a device's microstep."""
    matrices = {name: shape for name, (shape, _) in weights_of(spec, 1).items() if len(shape) > 1}
    layer = sum(math.prod(shape[1:]) for name, shape in matrices.items() if "layer_" in name)
    seen = spec["length"] if spec["predictions"] else spec["length"] / 2
    work = spec["layers"] * (2 * layer + 4 * seen * spec["heads"] * spec["size"]) * tokens(spec)
    again = spec["again"] * (4 / 3 if spec["keeps"] == "nothing" else 1)
    ends = 2 * scores(spec) * spec["width"]
    # Ids have no gradient.
    ends += 2 * tokens(spec) * math.prod(matrices["table"]) * spec["one_hot"] * 2 / 3
    times = (3 if not spec["rank"] else 2) if spec["gradient"] else 1
    return float(times * (again * work + ends))


def total(spec: Spec, programs: Mapping[str, Spec], known: Mapping[str, Any]) -> Counts | None:
    """Return the counts of a program on one device of its slice.

    The result is None if it was not compiled.
    """
    own = programs[str(spec.get("like", spec["name"]))]
    if own["name"] in known:
        parts = known[own["name"]]
    elif "work_of" in own:
        other = programs[own["work_of"]]
        counted = total(other, programs, known)
        if counted is None:
            return None
        again = spec["again"] * (own["again"] if own is not spec else 1)
        ratio = flops(spec | {"again": again}) / CHIPS[spec["chip"]].peak_flops
        ratio /= flops(other) / CHIPS[other["chip"]].peak_flops * other["microsteps"]
        parts = {"rest": {key: ratio * counted[key] for key in COUNTS}}
        parts["layer"] = dict.fromkeys(COUNTS, 0.0)
        own = spec
    else:
        return None
    if spec["kind"] != "step":
        return {**parts["rest"], "update": 0.0, "links": 0.0}
    again = 1 if own is spec else spec["again"]
    deep = spec["layers"] / own["compiled"] * again * tokens(spec) / tokens(own)
    wide = scores(spec) / scores(own)
    often = spec["microsteps"] * spec["extra"]
    counts = {k: often * (deep * parts["layer"][k] + wide * parts["rest"][k]) for k in COUNTS}
    target = compiler.of_topology(spec.get("slice", CHIPS[spec["chip"]].topology))
    devices = target.devices if "slice" in spec else 1
    shapes = [
        shape
        for name, (shape, _) in weights_of(spec, spec["layers"]).items()
        if not spec["rank"] or name.endswith(("_a", "_b"))
    ]
    weights = sum(map(math.prod, shapes))
    held = weights / (devices if spec["divided"] else 1)
    moved = held * UPDATE_BYTES[spec["optimizer"]]
    counts["update"] = moved / target.chip.hbm_bytes_per_second * 1e3
    # Weights gathered twice and gradients scattered, in bfloat16, layer by layer; or one sum.
    often = spec["microsteps"] if spec["divided"] else 1
    sent = weights * (3 * 2 * often if spec["divided"] else 2 * 4) * (1 - 1 / devices)
    hops = 3 * spec["layers"] * often if spec["divided"] else 1
    on_links = link_seconds(target.chip, spec.get("slice", ""), sent, hops) if devices > 1 else 0
    counts["links"] = on_links * 1e3
    for name in spec["also"]:
        same = {key: spec[key] for key in ("batch", "length", "predictions", "vocabulary")}
        added = total(programs[name] | same | {"name": "", "like": name}, programs, known)
        if added is None:
            return None
        counts = {key: value + added[key] for key, value in counts.items()}
    return counts


def published_ms(spec: Spec) -> float | None:
    """Return the published time, or the time that follows from a published rate."""
    if "tflops" not in spec:
        return spec.get("measured_ms")
    weights = sum(math.prod(shape) for shape, _ in weights_of(spec, spec["layers"]).values())
    attention = 12 * spec["layers"] * spec["length"] * spec["heads"] * spec["size"]
    return float(tokens(spec) * (6 * weights + attention) / spec["tflops"] / 1e9)


# --- the time of a step --------------------------------------------------------------------------


def predicted_ms(spec: Spec, counts: Counts, reached: float = measured.REACHED) -> float:
    """Return the time of a program.

    Other work hides the links.
    """
    kernels, code, estimate, links = (
        counts[key] / 1e3 for key in ("kernels", "code", "estimate", "links")
    )
    if spec["kind"] != "step":
        call = 0.0 if spec.get("on_device") else DISPATCH_MS
        return measured.device_seconds(kernels, code, estimate, reached) * 1e3 + call
    busy = measured.device_seconds(kernels, code, estimate, reached) + counts["update"] / 1e3
    return (max(busy, links) + measured.HOST_SECONDS) * 1e3


@dataclass(frozen=True)
class Judged:
    """Published step, and its time by constants that were fitted to other sources."""

    spec: Spec
    published: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Return the published time, relative to the predicted one."""
        return self.published / self.predicted


def source_of(spec: Spec) -> tuple[str, str]:
    """Return repository and chip: what errs together."""
    return spec["group"], spec["chip"]


def fit(specs: Sequence[Spec], counts: Mapping[str, Counts]) -> float:
    """Fit `measured.REACHED`: the median ratio of published to counted times, each source once."""
    ratios = []
    for spec in specs:
        fixed = predicted_ms(spec, counts[spec["name"]], 0.0)
        slope = predicted_ms(spec, counts[spec["name"]], 1.0) - fixed
        ratios.append(((published_ms(spec) or 0.0) - fixed) / max(slope, 1e-9))
    return quantile(specs, ratios, 0.5)


def quantile(specs: Sequence[Spec], values: Sequence[float], q: float) -> float:
    """Return a quantile of values, with the same weight for each source."""
    sizes = collections.Counter(map(source_of, specs))
    pairs = sorted((v, 1 / sizes[source_of(s)]) for s, v in zip(specs, values, strict=True))
    weights = np.array([weight for _, weight in pairs])
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    return float(np.interp(q, places, [value for value, _ in pairs]))


def judge(specs: Sequence[Spec], counts: Mapping[str, Counts]) -> list[Judged]:
    """Predict each step by a constant that is fitted without its source."""
    judged = []
    for source in dict.fromkeys(map(source_of, specs)):
        reached = fit([spec for spec in specs if source_of(spec) != source], counts)
        judged += [
            Judged(
                spec, published_ms(spec) or 0.0, predicted_ms(spec, counts[spec["name"]], reached)
            )
            for spec in specs
            if source_of(spec) == source
        ]
    return judged


def interval(judged: Sequence[Judged]) -> tuple[float, float]:
    """Return the interval of ratios that covers 80 % of the left-out steps."""
    specs, ratios = [one.spec for one in judged], [one.ratio for one in judged]
    return quantile(specs, ratios, 0.1), quantile(specs, ratios, 0.9)


# --- the page ------------------------------------------------------------------------------------


def predict(specs: Sequence[Spec], counts: Mapping[str, Counts], known: Mapping[str, Any]) -> None:
    """Write the predictions of set 2 that are missing.

    Those that are there stay as they are.

    If steps of the same repository have published times, their median ratio is applied.
    """
    entries = json.loads(BLIND[2].read_text(encoding="utf-8"))
    by_name = {spec["name"]: spec for spec in specs}
    for entry in entries:
        spec = by_name[entry["name"]]
        if entry["prediction_ms"] is not None or spec["name"] not in counts:
            continue
        ratios = [
            (published_ms(one) or 0.0) / predicted_ms(one, counts[one["name"]])
            for one in specs
            if one["group"] == spec["group"] and one["kind"] == "step" and published_ms(one)
            if one["name"] in counts
        ]
        ratio = statistics.median(ratios) if ratios else 1.0
        time = ratio * predicted_ms(spec, counts[spec["name"]])
        own = by_name[str(spec.get("like", spec["name"]))]
        entry |= {
            "prediction_ms": round(time, 3),
            "interval_ms": [round(end * time, 3) for end in measured.INTERVAL],
            "method": _method(spec, own, known),
            "ratio_of_source": round(ratio, 3),
            "predicted_on": datetime.date.today().isoformat(),
        }
    text = json.dumps(entries, indent=1, ensure_ascii=False)
    BLIND[2].write_text(f"{text}\n", encoding="utf-8")


def _method(spec: Spec, own: Spec, known: Mapping[str, Any]) -> str:
    if own["name"] not in known:
        return f"not compiled, rate of {own['work_of']}"
    return "compiled" if own is spec else f"layers of {own['name']}"


def report(specs: Sequence[Spec], counts: Mapping[str, Counts]) -> None:
    """Write the tables of the page, and draw the picture."""
    steps = [spec for spec in specs if spec["name"] in counts and published_ms(spec)]
    whole = [spec for spec in steps if spec["kind"] == "step"]
    judged = judge(whole, counts)
    low, high = interval(judged)
    lines = [
        f"{len(judged)} steps of {len(set(map(source_of, whole)))} sources. Fitted to all of them:"
        f" REACHED {fit(whole, counts):.3f}; interval {low:.2f} to {high:.2f}.",
        "",
        "| left out | steps | published / predicted | median error | within the interval |",
        "|---|---|---|---|---|",
    ]
    for source in dict.fromkeys(map(source_of, whole)):
        ratios = [one.ratio for one in judged if source_of(one.spec) == source]
        inside = sum(measured.INTERVAL[0] <= ratio <= measured.INTERVAL[1] for ratio in ratios)
        error = statistics.median(abs(ratio - 1) for ratio in ratios)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(_row(", ".join(source), len(ratios), spread, f"{error:.0%}", inside))
    lines += ["", "| set 1 | predicted then | interval then | published | held | by the formula |"]
    lines.append("|---|---|---|---|---|---|")
    by_name = {spec["name"]: spec for spec in specs}
    for entry in json.loads(BLIND[1].read_text(encoding="utf-8")):
        spec, name = by_name[entry["name"]], entry["name"]
        then, ends = entry["prediction_ms"], entry.get("interval_ms")
        now = f"{predicted_ms(spec, counts[name]):.4g}" if name in counts else "not compiled"
        real = published_ms(spec) or 0.0
        held = "" if not ends else "yes" if ends[0] <= real <= ends[1] else "no"
        link = f"[{name}]({spec['source']})"
        lines.append(_row(link, _time(then), _ends(ends), _time(real), held, now))
    lines += ["", "| set 2 | prediction, ms | interval | by |", "|---|---|---|---|"]
    for entry in json.loads(BLIND[2].read_text(encoding="utf-8")):
        cells = _time(entry["prediction_ms"]), _ends(entry["interval_ms"])
        lines.append(_row(entry["name"], *cells, entry.get("method", "")))
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    page = before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2]
    PAGE.write_text(page, encoding="utf-8")
    draw([(s, published_ms(s) or 0.0, predicted_ms(s, counts[s["name"]])) for s in steps])


def _row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _time(milliseconds: float | None) -> str:
    return f"{milliseconds:.4g}" if milliseconds else ""


def _ends(ends: Sequence[float] | None) -> str:
    return " to ".join(map(_time, ends)) if ends else ""


def draw(pairs: Sequence[tuple[Spec, float, float]]) -> None:
    """Draw predicted against published times, both axes logarithmic."""
    figure = Figure(figsize=(7, 6))
    axes = figure.subplots()
    for source in dict.fromkeys(source_of(spec) for spec, _, _ in pairs):
        times = [(now, real) for spec, real, now in pairs if source_of(spec) == source]
        axes.scatter(*zip(*times, strict=True), label=", ".join(source), alpha=0.8)
    shown = [value for _, *both in pairs for value in both]
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


def main() -> None:
    """Compile what is missing, predict, compare, draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="compile programs whose name contains this")
    parser.add_argument("--report", action="store_true", help="compile nothing")
    args = parser.parse_args()
    specs = load()
    programs = {spec["name"]: spec for spec in specs}
    for spec in specs:
        known = json.loads(CACHE.read_text(encoding="utf-8"))
        is_wanted = args.only in spec["name"] and not args.report
        if is_wanted and "like" not in spec and spec["name"] not in known:
            log(f"{spec['name']} ...")
            known[spec["name"]] = compile_parts(spec)
            CACHE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    known = json.loads(CACHE.read_text(encoding="utf-8"))
    totals = {spec["name"]: total(spec, programs, known) for spec in specs}
    counts = {name: found for name, found in totals.items() if found is not None}
    predict(specs, counts, known)
    report(specs, counts)


if __name__ == "__main__":
    main()
