"""Choice between XLA's attention and the Pallas kernels.

XLA's attention (`bigbird`, `modernbert`, `tiled`) runs everywhere and is the reference. The kernels
are for newer TPUs under the engine pjrt. On a CPU Pallas' interpreter runs the kernels, for
comparisons. jax is imported only if kernels are used.
"""

import contextlib
import importlib.metadata
import re

from bigbird_ja.errors import BadInput
from bigbird_ja.model import head_attention, pattern
from bigbird_ja.model.kernels.layer_shape import LANES, LayerShape, tile_rows
from bigbird_ja.process.console import log
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import replace_settings

# Vector memory of one core in MiB (jax's `pltpu.get_tpu_info`).
_VMEM_MIB = {"v4": 16, "v5e": 128, "v5p": 64, "v6e": 128, "v7x": 64}


# Chips on which `auto` selects the kernels. On these chips the kernels reduce the cycles of a whole
# step, as counted in its machine code (docs/design/kernel.md).
_CHEAPER_ON: tuple[str, ...] = ("v5e", "v6e")


_OLDEST_JAX = (0, 7)


_KEY = "model.attention_implementation"


# Words in the message of a compiler that cannot compile a kernel. Either the compiler cannot read
# this version of Mosaic, or the chip's vector memory is too small.
_REFUSAL = re.compile(r"mosaic|tpu_custom_call|memory space vmem", re.IGNORECASE)


# Words in a compiler's message when HBM is too small. This message also matches `_REFUSAL`, as it
# lists the buffers of the kernels. But the kernels are not the reason for the failure.
_OTHER_MEMORY = "memory space hbm"


def resolve_attention(config: Config, data: Data, platform: str, chip: str | None) -> Config:
    """Return the config with `model.attention_implementation` resolved to `xla` or `kernel`.

    Args:
        config: config of the run.
        data: data of the run.
        platform: "cpu", "cuda" or "tpu".
        chip: name of a TPU's chip, or None.

    Raises:
        BadInput: `kernel` is requested but not possible.
    """
    wanted = config.model.attention_implementation
    if wanted == "xla" or (wanted == "auto" and chip not in _CHEAPER_ON):
        return replace_settings(config, {_KEY: "xla"})
    why_not = _find_obstacle(config, data.seq_length, platform, chip)
    if why_not and wanted == "kernel":
        raise BadInput(f"{_KEY}=kernel is not possible, as {why_not}: leave it at auto")
    return replace_settings(config, {_KEY: "xla" if why_not else "kernel"})


def fall_back_to_xla(requested: Config, taken: Config, error: Exception) -> Config:
    """Return the config with XLA's attention after a kernel failed to compile, and log the change.

    Args:
        requested: config before `resolve_attention`.
        taken: config that failed to compile.
        error: error of the compiler.

    Raises:
        Exception: `error` itself, if kernels are not its reason, or if the user requested kernels.
    """
    text = str(error)
    is_ours = _REFUSAL.search(text) and _OTHER_MEMORY not in text
    ways = [config.model.attention_implementation for config in (requested, taken)]
    if ways != ["auto", "kernel"] or not is_ours:
        raise error
    log(f"{_KEY}=auto: xla, as this compiler refuses the kernels: {text.splitlines()[0][:200]}")
    return replace_settings(taken, {_KEY: "xla"})


def saves_derivatives(config: Config) -> bool:
    """Return whether activations save their derivatives (`layers`) for the backward pass.

    Derivatives are saved only if attention uses the kernels. On chips with kernels a step is then
    faster (docs/design/kernel.md). Other chips have too little memory for the derivatives.
    """
    return config.model.attention_implementation == "kernel"


def trace_for(config: Config, platform: str) -> contextlib.AbstractContextManager[None]:
    """Return the context manager in which a model is traced for a platform.

    The config must be a result of `resolve_attention`.
    """
    if platform != "cpu":
        return contextlib.nullcontext()
    if config.model.attention_implementation != "kernel":
        return head_attention.traced_for_a_cpu()
    from bigbird_ja.model.kernels.kernel_attention import interpret_kernels

    return interpret_kernels()


def _find_obstacle(config: Config, length: int, platform: str, chip: str | None) -> str | None:
    """Return the reason why kernels cannot compute a config's attention, or None if they can."""
    model = config.model
    if model.architecture == "modernbert":
        reach = model.local_attention // 2
        tiles = [tile_rows(length, None), tile_rows(length, reach)]
    elif not pattern.is_sparse(model) or pattern.is_full(config, length):
        tiles = [tile_rows(length, None)]
    elif (model.attention_type, model.random_pattern) != ("block_sparse", "rolled"):
        return f"no kernel exists for {model.attention_type} with {model.random_pattern} blocks"
    else:
        tiles = [2 * model.block_size]
    if not all(tiles):
        if model.architecture == "modernbert" and model.local_attention > 2 * LANES:
            return f"model.local_attention={model.local_attention} is more than {2 * LANES}"
        return f"sequences of {length} tokens are not a multiple of 128 or 256, its tiles' lengths"
    if (version := _get_jax_version()) is None:
        return "it needs jax, which is not installed"
    if version < _OLDEST_JAX:
        return f"it needs jax {'.'.join(map(str, _OLDEST_JAX))} or later"
    if platform == "cpu":  # Pallas interprets the kernels.
        return None
    if platform != "tpu" or chip not in _VMEM_MIB:
        return f"it is for TPUs {', '.join(_VMEM_MIB)}"

    heads = model.num_attention_heads
    size, documents = model.hidden_size // heads, not model.attend_across_documents
    dtype = config.training.dtype
    for rows in tiles:
        shape = LayerShape(1, length // rows, heads, size, rows, None, documents, dtype)
        if shape.rows % LANES or shape.group * shape.size % LANES:
            return "it needs two blocks of a multiple of 128 tokens, and heads that fill 128 lanes"
        if shape.vmem_bytes() > _VMEM_MIB[chip] << 20:
            return f"sequences of {length} tokens do not fit the vector memory of a TPU {chip}"
    return None


def _get_jax_version() -> tuple[int, ...] | None:
    """Return the major and minor number of the installed jax."""
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
