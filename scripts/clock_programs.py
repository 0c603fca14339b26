"""Write the public programs of scripts/clock.yaml, as far as their pages describe them."""

import functools
import types
from typing import Any

Spec = dict[str, Any]


def matmul(spec: Spec) -> tuple[Any, list[Any]]:
    """Return the matmul kernel of JAX's documentation, and its arguments' shapes and dtypes."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

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


def _splash(heads: int, length: int, block: int, window: int | None) -> Any:
    from jax.experimental.pallas import tpu as pltpu
    from jax.experimental.pallas.ops.tpu import splash_attention as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as module

    # The memory that recipes set for all ops; XLA's take twice as long to compile with it, and as
    # many cycles.
    roomy = functools.partial(pltpu.CompilerParams, vmem_limit_bytes=96 << 20)
    module.pltpu = types.SimpleNamespace(**vars(pltpu) | {"CompilerParams": roomy})
    one = (
        splash.LocalMask((length, length), (window, 0), 0)
        if window
        else splash.CausalMask((length, length))
    )
    fields = "q kv kv_compute q_dkv kv_dkv kv_dkv_compute"
    sizes = splash.BlockSizes(
        **{f"block_{name}": min(block, length) for name in fields.split()},
        use_fused_bwd_kernel=True,
    )
    return splash.make_splash_mha(
        splash.MultiHeadMask([one] * heads), head_shards=1, q_seq_shards=1, block_sizes=sizes
    )


def attention(spec: Spec) -> tuple[Any, list[Any]]:
    """Return JAX's flash or splash attention, and its arguments' shapes and dtypes."""
    import jax
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    batch, heads, length, size = (spec[key] for key in ("batch", "heads", "length", "head_size"))
    shapes = [((batch, heads, length, size), "bfloat16")] * 3
    if spec["kind"] == "flash":
        return flash_attention, shapes
    kernel = jax.vmap(_splash(heads, length, spec["block"], spec.get("window")))
    if not spec.get("backward"):
        return kernel, shapes
    gradient = jax.grad(lambda q, k, v: kernel(q, k, v).astype("float32").mean(), argnums=(0, 1, 2))
    return gradient, shapes


def decoder(spec: Spec, layers: int) -> tuple[Any, list[Any]]:
    """Write gradients of a plain decoder: gated MLP, rotations left out, bfloat16."""
    import jax
    import jax.numpy as jnp

    width, mlp, vocabulary, size = (spec[key] for key in ("width", "mlp", "vocabulary", "size"))
    heads, groups, length, batch = (spec[key] for key in ("heads", "kv_heads", "length", "batch"))
    shapes = {
        "q": (width, heads * size), "k": (width, groups * size), "v": (width, groups * size),
        "o": (heads * size, width), "gate": (width, mlp), "up": (width, mlp), "down": (mlp, width),
    }  # fmt: skip
    given: list[Any] = [((layers, *shape), "bfloat16") for shape in shapes.values()]
    given += [((vocabulary, width), "bfloat16"), ((width, vocabulary), "bfloat16")]
    given += [((batch, length), "int32")]
    kept = jax.checkpoint_policies.save_only_these_names(*(["kept"] if spec["keeps"] else []))
    layer = jax.checkpoint(_layer(spec, list(shapes)), policy=kept)

    def loss(weights: Any, ids: Any) -> Any:
        *stacked, table, last = weights
        x, _ = jax.lax.scan(layer, table[ids], stacked)
        if not spec.get("parts"):
            return _head(x, last, ids)
        parts = (spec["parts"], -1)
        xs = x.reshape(*parts, width), ids.reshape(*parts)
        add = jax.checkpoint(lambda total, each: (total + _head(each[0], last, each[1]), None))
        return jax.lax.scan(add, jnp.float32(0), xs)[0]

    return lambda *all_: jax.grad(loss)(list(all_[:-1]), all_[-1]), given


def _layer(spec: Spec, names: list[str]) -> Any:
    """Write a layer as the body of a scan over weights."""
    import jax
    from jax.ad_checkpoint import checkpoint_name

    length, batch, size = spec["length"], spec["batch"], spec["size"]
    attend = jax.vmap(_splash(spec["heads"], length, spec["block"], None))

    def split(x: Any) -> Any:
        return x.reshape(batch, length, -1, size).swapaxes(1, 2)

    @jax.named_scope("layer")
    def layer(x: Any, each: Any) -> tuple[Any, None]:
        w = dict(zip(names, each, strict=True))
        y = _norm(x)
        q, k, v = (checkpoint_name(y @ w[name], "kept") for name in "qkv")
        context = attend(split(q), split(k), split(v)).swapaxes(1, 2).reshape(batch, length, -1)
        x = x + checkpoint_name(context @ w["o"], "kept")
        y = _norm(x)
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    return layer


def _norm(x: Any) -> Any:
    import jax

    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def _head(x: Any, last: Any, ids: Any) -> Any:
    import jax
    import jax.numpy as jnp

    scores = (_norm(x) @ last).astype("float32")
    right = jnp.take_along_axis(scores, ids[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(scores, -1) - right).sum()
