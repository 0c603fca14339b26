"""Write the train steps of docs/lab/clock_blind.json, as the code behind each computes them.

A writer takes the configuration and a number of layers, and returns a function, its arguments
(trees of shape and dtype) and how a slice divides them. A train step computes the loss, gradients,
and the optimizer's update; the batch is one chip's.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.sharding import PartitionSpec

from scripts.clock_programs import Spec

AXIS = "data"
Written = tuple[Any, list[Any], list[Any]]
TILE, BLOCK = 2048, 1024  # of a tiled loss; of attention in blocks


def _norm(x: Any, scale: Any, dtype: Any = "float32") -> Any:
    wide = x.astype(dtype)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _rotate(x: Any, positions: Any, interleaved: bool, base: float = 1e4) -> Any:
    """Rotate [batch, length, heads, size] by positions [batch or 1, length]."""
    size = x.shape[-1]
    angle = positions[..., None, None] / base ** (jnp.arange(0, size, 2) / size)
    sin, cos = (f(angle).astype(x.dtype if interleaved else "float32") for f in (jnp.sin, jnp.cos))
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
    both = first * cos - second * sin, second * cos + first * sin
    joined = jnp.stack(both, -1).reshape(x.shape) if interleaved else jnp.concatenate(both, -1)
    return joined.astype(x.dtype)


def _dense(q: Any, k: Any, v: Any, mask: Any, scores: Any = "float32") -> Any:
    """Attend over [batch, length, heads, size]; one head of keys serves all queries."""
    logits = jnp.einsum("btnh,bsnh->bnts", q, k).astype(scores) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask, logits, -1e30), -1).astype(v.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def _flash(q: Any, k: Any, v: Any, tiles: tuple[int, int, int], segments: Any = None) -> Any:
    """Attend over [batch, heads, length, size] by JAX's kernel, causal."""
    rows, major, keys = tiles
    backward = {"block_q_major_dkv": rows, "block_k_major_dkv": major, "block_k_dkv": keys}
    backward |= {"block_q_dkv": keys, "block_k_major_dq": major, "block_k_dq": keys}
    sizes = flash.BlockSizes(rows, major, keys, 1, **backward, block_q_dq=keys)
    ids = None if segments is None else flash.SegmentIds(segments, segments)
    return flash.flash_attention(q, k, v, segment_ids=ids, causal=True, block_sizes=sizes)


def _pairs(step: Any, count: int, backward: bool, state: Any) -> Any:
    """Run over the pairs of causal blocks, a loop for each block of queries (or of keys)."""
    for one in range(count):
        first, last = (one, count) if backward else (0, one + 1)
        state = jax.lax.fori_loop(first, last, functools.partial(step, one), state)
    return state


@jax.custom_vjp
def _blocks(q: Any, k: Any, v: Any) -> Any:
    return _blocks_forward(q, k, v)[0]


def _at(x: Any, block: Any) -> Any:
    return jax.lax.dynamic_slice_in_dim(x, block * BLOCK, BLOCK, 2)


def _put(x: Any, block: Any, value: Any) -> Any:
    return jax.lax.dynamic_update_slice_in_dim(x, value.astype(x.dtype), block * BLOCK, 2)


def _scores(q: Any, k: Any, row: Any, column: Any) -> Any:
    rows, columns = (jnp.arange(BLOCK) + BLOCK * block for block in (row, column))
    seen = rows[:, None] >= columns
    return jnp.where(seen, jnp.einsum("bhqd,bhkd->bhqk", q, k), jnp.asarray(-1e10, q.dtype))


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
    count = q.shape[2] // BLOCK
    out, total, most = _pairs(step, count, False, (jnp.zeros_like(q), column, column - 1e30))
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


# --- losses ---


def dense_loss(x: Any, table: Any, labels: Any) -> Any:
    """Return the mean cross entropy of all logits at once."""
    scores = (x @ table.astype(x.dtype).T).astype("float32")
    right = (scores * jax.nn.one_hot(labels, table.shape[0])).sum(-1)
    return (jax.nn.logsumexp(scores, -1) - right).mean()


@jax.custom_vjp
def tiled_loss(x: Any, table: Any, labels: Any) -> Any:
    """Return the mean cross entropy, a tile of the vocabulary at a time."""
    return _tiled_forward(x, table, labels)[0]


def _tiles(table: Any) -> tuple[Any, int]:
    count = -(-table.shape[0] // TILE)
    return jnp.pad(table, ((0, count * TILE - table.shape[0]), (0, 0))), count


def _tile(x: Any, padded: Any, number: Any, size: int) -> tuple[Any, Any, Any]:
    part = jax.lax.dynamic_slice_in_dim(padded, number * TILE, TILE).astype(x.dtype)
    ids = number * TILE + jnp.arange(TILE)
    scores = jnp.einsum("nd,vd->nv", x, part, preferred_element_type="float32")
    return part, ids, jnp.where(ids < size, scores, -jnp.inf)


def _tiled_forward(x: Any, table: Any, labels: Any) -> Any:
    flat, ids = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
    padded, count = _tiles(table)

    def step(number: Any, state: Any) -> Any:
        most, total = state
        scores = _tile(flat, padded, number, table.shape[0])[2]
        top = jnp.maximum(most, scores.max(1))
        return top, total * jnp.exp(most - top) + jnp.exp(scores - top[:, None]).sum(1)

    start = jnp.full(len(flat), -jnp.inf), jnp.zeros(len(flat))
    most, total = jax.lax.fori_loop(0, count, step, start)
    logs = most + jnp.log(total)
    own = table[ids].astype(x.dtype)
    right = jnp.einsum("nd,nd->n", flat, own, preferred_element_type="float32")
    return (logs - right).mean(), (x, table, ids, logs)


def _tiled_backward(kept: Any, given: Any) -> Any:
    x, table, ids, logs = kept
    flat = x.reshape(-1, x.shape[-1])
    padded, count = _tiles(table)

    def step(number: Any, state: Any) -> Any:
        dx, dtable = state
        part, tile, scores = _tile(flat, padded, number, table.shape[0])
        slope = jnp.exp(scores - logs[:, None]) - (ids[:, None] == tile)
        slope = (slope * given / len(ids)).astype(x.dtype)
        dx += jnp.einsum("nv,vd->nd", slope, part, preferred_element_type="float32")
        more = jnp.einsum("nv,nd->vd", slope, flat, preferred_element_type="float32")
        return dx, jax.lax.dynamic_update_slice_in_dim(dtable, more, number * TILE, 0)

    start = jnp.zeros(flat.shape, "float32"), jnp.zeros(padded.shape, "float32")
    dx, dtable = jax.lax.fori_loop(0, count, step, start)
    return dx.reshape(x.shape).astype(x.dtype), dtable[: len(table)].astype(table.dtype), None


tiled_loss.defvjp(_tiled_forward, _tiled_backward)


# --- steps ---


def _adam(weights: Any, slots: Any, gradients: Any) -> Any:
    """Update with AdamW in float32 (decay of all, as only its bytes count)."""

    def one(w: Any, m: Any, v: Any, g: Any) -> Any:
        g = g.astype(w.dtype)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), m, v

    leaves = [jax.tree.leaves(tree) for tree in (weights, *slots, gradients)]
    updated = [one(*each) for each in zip(*leaves, strict=True)]
    return [
        jax.tree.unflatten(jax.tree.structure(weights), each)
        for each in map(list, zip(*updated, strict=True))
    ]


def is_shape(one: Any) -> bool:
    """Tell an argument's shape and dtype from the trees around it."""
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str)


def _whole(shapes: Any) -> Any:
    """Divide nothing."""
    return jax.tree.map(lambda _: PartitionSpec(), shapes, is_leaf=is_shape)


def _step(loss: Any, weights: Any, spec: Spec) -> Written:
    """Return a step of weights, Adam's two slots and token ids; a slice divides the ids alone."""
    is_slice, shape = "slice" in spec, (spec["batch"] * spec.get("slice", 1), spec["length"])

    def step(weights: Any, m: Any, v: Any, *rest: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *rest)
        if is_slice:
            value, gradients = jax.lax.pmean((value, gradients), AXIS)
        norm = sum((g.astype("float32") ** 2).sum() for g in jax.tree.leaves(gradients))
        return *_adam(weights, (m, v), gradients), value, norm

    shapes = [weights] * 3
    return step, [*shapes, (shape, "int32")], [*_whole(shapes), PartitionSpec(AXIS)]


def gemma(spec: Spec, layers: int) -> Written:
    """Write Tunix's Gemma 3 with LoRA, all in bfloat16; the base's weights get no gradients."""
    width, mlp, heads, size, rank = (spec[key] for key in ("width", "mlp", "heads", "size", "rank"))
    batch, length, dtype = spec["batch"], spec["length"], "bfloat16"
    products = {  # equation, shape of the weights
        "q": ("btd,ndh->btnh", (heads, width, size), "btd,dr,rnh->btnh"),
        "kv": ("btd,ckdh->cbtkh", (2, 1, width, size), "btd,dr,rckh->cbtkh"),
        "o": ("btnh,nhd->btd", (heads, size, width), "btnh,nhr,rd->btd"),
        "gate": ("btd,df->btf", (width, mlp), "btd,dr,rf->btf"),
        "up": ("btd,df->btf", (width, mlp), "btd,dr,rf->btf"),
        "down": ("btf,fd->btd", (mlp, width), "btf,fr,rd->btd"),
    }
    sizes: dict[str, int] = {}
    base, lora = {}, {}
    for name, (equation, shape, low) in products.items():
        sizes |= dict(zip(equation.split(",")[1].split("->")[0], shape, strict=True)) | {"r": rank}
        _, *pair = low.split("->")[0].split(",")
        base[name] = (shape, dtype)
        lora[name] = [(tuple(sizes[letter] for letter in part), dtype) for part in pair]
    norms = [((width,), dtype)] * 4 + [((size,), dtype)] * 2

    def layer(x: Any, w: Any, a: Any, scales: Any, positions: Any, mask: Any, base: float) -> Any:
        def product(name: str, y: Any) -> Any:
            equation, _, low = products[name]
            return jnp.einsum(equation, y, w[name]) + jnp.einsum(low, y, *a[name]) * 2

        norm = functools.partial(_norm, dtype=dtype)
        scales = [1 + scale for scale in scales]
        y = norm(x, scales[0])
        keys, values = product("kv", y)
        q = _rotate(norm(product("q", y), scales[4]), positions, False, base)
        k = _rotate(norm(keys, scales[5]), positions, False, base)
        logits = jnp.einsum("btnh,bsh->btns", q * size**-0.5, k[:, :, 0])
        weights = jax.nn.softmax(jnp.where(mask[:, :, None], logits, -1e30), -1).astype(dtype)
        x = (
            norm(product("o", jnp.einsum("btns,bsh->btnh", weights, values[:, :, 0])), scales[1])
            + x
        )
        y = norm(x, scales[2])
        return (
            norm(product("down", jax.nn.gelu(product("gate", y)) * product("up", y)), scales[3]) + x
        )

    def loss(lora: Any, base: Any, table: Any, ids: Any, target: Any, where: Any, mask: Any) -> Any:
        x = table[ids] * jnp.asarray(width**0.5, dtype)
        band = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length)) < spec["window"]
        for number in range(layers):
            is_global = number % 6 == 5
            seen = mask if is_global else mask & band
            w, scales = base[number]
            x = layer(x, w, lora[number], scales, where, seen, 1e6 if is_global else 1e4)
        x = _norm(x, 1 + base[-1], dtype)
        scores = x[:, :-1] @ table.T
        hot = jax.nn.one_hot(ids[:, 1:], table.shape[0]) * target[:, 1:, None]
        return -(jax.nn.log_softmax(scores) * hot).sum() / (target[:, 1:].sum() + 1e-8)

    tokens, table = (batch, length), ((spec["vocabulary"], width), dtype)
    shapes: list[Any] = [[lora] * layers] * 3 + [
        [(base, norms)] * layers + [((width,), dtype)],
        table,
    ]
    shapes += [(tokens, "int32"), (tokens, "bool"), (tokens, "int32")]
    shapes += [((*tokens, length), "bool")]
    return _step(loss, [], spec)[0], shapes, _whole(shapes)


def gpt(spec: Spec, layers: int) -> Written:
    """Write GPT-speedrun-TPU's decoder: float32 weights, bfloat16 products, layers unrolled."""
    width, heads, batch, length = (spec[key] for key in ("width", "heads", "batch", "length"))
    one: dict[str, tuple[int, ...]] = {"norm1": (width,), "norm2": (width,)}
    one |= {"qkv": (width, 3 * width), "o": (width, width)}
    one |= {"up": (width, 4 * width), "down": (4 * width, width)}
    one |= {f"{name}_b": one[name][1:] for name in ("qkv", "o", "up", "down")}
    table = ((spec["vocabulary"], width), "float32")
    weights: dict[str, Any] = {"table": table, "norm": ((width,), "float32")}
    weights["layers"] = [{name: (shape, "float32") for name, shape in one.items()}] * layers
    if not spec["tied"]:
        weights["last"] = table
    ending = tiled_loss if spec["tiled"] else dense_loss

    def loss(weights: Any, ids: Any) -> Any:
        x = weights["table"][ids].astype("bfloat16")
        positions = jnp.arange(length, dtype="float32")[None]
        segments = (ids == 50256).cumsum(1).astype("int32") if spec["documents"] else None
        causal = jnp.tril(jnp.ones((length, length), "bool"))
        for given in weights["layers"]:
            w = {name: value.astype("bfloat16") for name, value in given.items()}
            y = _norm(x, w["norm1"]) @ w["qkv"] + w["qkv_b"]
            q, k, v = (part.reshape(batch, length, heads, -1) for part in jnp.split(y, 3, -1))
            q, k = _rotate(q, positions, True), _rotate(k, positions, True)
            if spec["tiles"]:
                q, k, v = (each.swapaxes(1, 2) for each in (q, k, v))
                y = _flash(q, k, v, spec["tiles"], segments).swapaxes(1, 2)
            else:
                y = _dense(q, k, v, causal)
            x = x + y.reshape(x.shape) @ w["o"] + w["o_b"]
            y = jax.nn.gelu(_norm(x, w["norm2"]) @ w["up"] + w["up_b"])
            x = x + y @ w["down"] + w["down_b"]
        x = _norm(x, weights["norm"].astype(x.dtype))
        return ending(x, weights.get("last", weights["table"]), jnp.roll(ids, -1, 1))

    return _step(loss, weights, spec)


def llama(spec: Spec, layers: int) -> Written:
    """Write gradients of Levanter's Llama: a scan of checkpointed layers, attention in blocks."""
    width, mlp, size, groups = (spec[key] for key in ("width", "mlp", "size", "kv_heads"))
    heads, batch, length = (spec[key] for key in ("heads", "batch", "length"))
    one = {"norm1": (width,), "norm2": (width,), "q": (width, heads * size)}
    one |= {"k": (width, groups * size), "v": (width, groups * size), "o": (heads * size, width)}
    one |= {"gate": (width, mlp), "up": (width, mlp), "down": (mlp, width)}
    table = ((spec["vocabulary"], width), "float32")
    weights: dict[str, Any] = {"table": table, "last": table, "norm": ((width,), "float32")}
    weights["layers"] = {name: ((layers, *shape), "float32") for name, shape in one.items()}

    def split(x: Any) -> Any:
        return x.reshape(batch, length, -1, size)

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        positions = jnp.arange(length, dtype="float32")[None]
        y = _norm(x, w["norm1"])
        q, k, v = (split(y @ w[name]) for name in "qkv")
        q, k = _rotate(q, positions, False) * size**-0.5, _rotate(k, positions, False)
        k, v = (jnp.repeat(each, heads // groups, 2) for each in (k, v))
        y = _blocks(*(each.swapaxes(1, 2) for each in (q.astype(x.dtype), k, v))).swapaxes(1, 2)
        x = x + y.reshape(batch, length, -1) @ w["o"]
        y = _norm(x, w["norm2"])
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    def loss(weights: Any, ids: Any) -> Any:
        w = jax.tree.map(lambda each: each.astype("bfloat16"), weights)
        x = _norm(jax.lax.scan(layer, w["table"][ids], w["layers"])[0], w["norm"])
        return dense_loss(x, w["last"], jnp.roll(ids, -1, 1))

    arguments = [weights, ((batch, length), "int32")]
    return jax.value_and_grad(loss), arguments, _whole(arguments)


def muon(spec: Spec, layers: int) -> Written:
    """Write Muon's update of `llama`'s stacked matrices, divided as Levanter divides them."""
    width, mlp, size, groups = (spec[key] for key in ("width", "mlp", "size", "kv_heads"))
    inner, outer = PartitionSpec(None, None, AXIS), PartitionSpec(None, AXIS, None)
    heads = spec["heads"] * size
    matrices = [((heads, width), inner), ((groups * size, width), inner)]
    matrices += [((groups * size, width), inner), ((width, heads), outer)]
    matrices += [((mlp, width), inner), ((mlp, width), inner), ((width, mlp), outer)]

    def orthogonal(x: Any) -> Any:
        is_tall = x.shape[0] > x.shape[1]
        x = x / (jnp.linalg.norm(x) + 1e-5)
        x = jax.lax.with_sharding_constraint(x.T if is_tall else x, PartitionSpec(None, AXIS))
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return x.T if is_tall else x

    def update(weights: Any, momenta: Any, gradients: Any) -> Any:
        momenta = [0.95 * m + g for m, g in zip(momenta, gradients, strict=True)]
        steps = [
            jax.vmap(orthogonal)(0.95 * m + g) for m, g in zip(momenta, gradients, strict=True)
        ]
        return [w - 1e-3 * (s + 0.1 * w) for w, s in zip(weights, steps, strict=True)], momenta

    shapes = [((layers, *shape), "float32") for shape, _ in matrices]
    return update, [shapes] * 3, [[one for _, one in matrices]] * 3


# --- single ops ---


def op(spec: Spec, _: int) -> Written:
    """Write attention or a loss with gradients, a product or a copy."""
    dims = spec["shape"]
    arrays: list[Any]
    if spec["what"] == "attention":
        arrays = [(tuple(dims), "bfloat16")] * 3
        mask = jnp.tril(jnp.ones((dims[2], dims[2]), "bool"))
        turned = functools.partial(jnp.swapaxes, axis1=1, axis2=2)

        def attend(q: Any, k: Any, v: Any) -> Any:
            if spec["tiles"]:
                return _flash(q, k, v, spec["tiles"])
            return turned(_dense(turned(q), turned(k), turned(v), mask))

        program = jax.grad(lambda *all_: attend(*all_).astype("float32").sum(), (0, 1, 2))
    elif spec["what"] == "loss":
        tokens, width, vocabulary = dims
        loss = tiled_loss if spec["tiled"] else dense_loss
        program = jax.value_and_grad(loss, (0, 1))
        arrays = [((tokens, width), "bfloat16"), ((vocabulary, width), "float32")]
        arrays += [((tokens,), "int32")]
    elif spec["what"] == "product":
        program, arrays = jnp.matmul, [(tuple(dims), "bfloat16")] * 2
    else:
        program, arrays = jnp.copy, [(tuple(dims), "bfloat16")]
    return program, arrays, _whole(arrays)
