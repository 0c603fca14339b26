"""The ancestor's train step by machine code, counted as ours is.

  git clone https://github.com/google-research/bigbird
  .venv/bin/python -m scripts.ancestor_step trace bigbird step.msgpack --layers 1
  .venv/bin/python -m scripts.ancestor_step count step.msgpack v5e

google-research/bigbird's own encoder, heads and AdamW: BERT-base, 4,096 tokens, 2 sequences, blocks
of 64, 3 random ones, 600 predictions, 32,000 pieces, dropout 0.1, float32, no checkpointing; the
whole step of one core. `trace` needs TensorFlow 2.15 (its layers are written for Keras 2),
`count` a libtpu from 0.0.42. What is counted is `docs/design/preflight.md`'s.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import tempfile
from typing import Any

import msgspec

from bigbird_ja.accelerators.hardware import CHIPS
from bigbird_ja.preflight import breakdown, compile_child, costs, hlo, machine_code, roofline
from bigbird_ja.train.engines.lowering import Spec, Traced

SEQUENCES, LENGTH, PREDICTIONS, VOCABULARY = 2, 4096, 600, 32000
_CONFIG: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": LENGTH, "num_attention_heads": 12, "type_vocab_size": 2,
    "use_bias": True, "rescale_embedding": False, "use_gradient_checkpointing": False,
    "scope": "bert", "attention_type": "block_sparse", "norm_type": "postnorm", "block_size": 64,
    "num_rand_blocks": 3, "vocab_size": VOCABULARY, "max_encoder_length": LENGTH,
}  # fmt: skip
_KINDS = {"s32": "int32", "f32": "float32", "pred": "bool", "s64": "int64", "u32": "uint32"}


class Step(msgspec.Struct):
    """A lowered step, and which of its arguments its results replace."""

    traced: Traced
    donated: list[int]


def trace(checkout: str, layers: int) -> Step:
    """The step as one HLO module.

    Args:
        checkout: of google-research/bigbird.
    """
    import tensorflow as tf
    from tensorflow.python.ops import variable_scope

    sys.path.insert(0, checkout)
    from bigbird.core import modeling, utils

    heads = _heads(checkout)
    store = variable_scope.EagerVariableStore()
    with store.as_default():
        model = modeling.BertModel(_CONFIG | {"num_hidden_layers": layers})
        initializer = utils.create_initializer(0.02)
        gelu = utils.get_activation("gelu")
        mlm = heads.MaskedLMLayer(
            768, VOCABULARY, model.embeder, initializer=initializer, activation_fn=gelu
        )
        nsp = heads.NSPLayer(768, initializer=initializer)
        variables = list({id(v): v for v in store.trainable_variables()}.values())
        slots = [[tf.Variable(tf.zeros_like(v)) for v in variables] for _ in range(2)]
        count = tf.Variable(1, dtype=tf.int32)

        def step(ids: Any, segments: Any, where: Any, what: Any, weights: Any, follows: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden, pooled = model(ids, training=True, token_type_ids=segments)
                loss, _ = mlm(
                    hidden, label_ids=what, label_weights=weights, masked_lm_positions=where
                )
                loss += nsp(pooled, follows)[0]
            gradients = tape.gradient(loss, variables)
            rate = 1e-4 * tf.minimum(tf.cast(count, tf.float32) / 10_000.0, 1.0)
            for gradient, variable, m, v in zip(gradients, variables, *slots, strict=True):
                _update(tf.convert_to_tensor(gradient), variable, m, v, rate)
            count.assign_add(1)
            return loss

        sizes = ((LENGTH, "int32"), (LENGTH, "int32"), (PREDICTIONS, "int32"),
                 (PREDICTIONS, "int32"), (PREDICTIONS, "float32"), (1, "int32"))  # fmt: skip
        batch = [tf.zeros([SEQUENCES, size], dtype) for size, dtype in sizes]
        with tf.device("/CPU:0"):
            lowered = tf.function(step, jit_compile=True).experimental_get_compiler_ir(*batch)
        head = lowered(stage="hlo").splitlines()[0]
        return _step(lowered(stage="hlo_serialized"), head)


def _heads(checkout: str) -> Any:
    """A module with its two heads; theirs wants a tokenizer as soon as it is imported."""
    path = os.path.join(checkout, "bigbird", "pretrain", "run_pretraining.py")
    with open(path, encoding="utf-8") as stream:
        source = stream.read()
    parts = ["import tensorflow.compat.v2 as tf", "from bigbird.core import utils", ""]
    for name in ("MaskedLMLayer", "NSPLayer"):
        match = re.search(rf"^class {name}\(.*?(?=^class |^def )", source, re.DOTALL | re.MULTILINE)
        if match is None:
            raise ValueError(f"{path}: no class {name}")
        parts.append(match[0])
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, "heads.py"), "w", encoding="utf-8") as stream:
            stream.write("\n".join(parts))
        sys.path.insert(0, directory)
        return importlib.import_module("heads")


def _update(gradient: Any, variable: Any, m: Any, v: Any, rate: Any) -> None:
    """As its `AdamWeightDecayOptimizer._apply_dense`."""
    import tensorflow as tf

    new_m, new_v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * tf.square(gradient)
    change = new_m / (tf.sqrt(new_v) + 1e-6)
    if not re.search("LayerNorm|layer_norm|bias", variable.name):
        change += 0.01 * variable
    variable.assign(variable - rate * change)
    m.assign(new_m)
    v.assign(new_v)


def _step(module: bytes, head: str) -> Step:
    layout = re.search(r"entry_computation_layout=\{\((.*)\)->(.*)\}", head)
    if layout is None:
        raise ValueError("HLO without an entry layout")
    inputs, outputs = _specs(layout[1], "in"), _specs(layout[2], "out")
    donated = sorted({int(place) for place in re.findall(r"\{\d+\}: \((\d+),", head)})
    return Step(Traced(_without_copies(module), inputs, outputs), donated)


def _without_copies(module: bytes) -> bytes:
    """TensorFlow copies what a variable is given; StableHLO has no such operation."""
    from tensorflow.compiler.xla.service import hlo_pb2

    parsed = hlo_pb2.HloModuleProto.FromString(module)
    for computation in parsed.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "copy":
                instruction.opcode = "reshape"
    changed: bytes = parsed.SerializeToString()
    return changed


def _specs(text: str, name: str) -> dict[str, Spec]:
    shapes = re.findall(rf"\b({'|'.join(_KINDS)})\[([\d,]*)\]", re.sub(r"\{[^}]*\}", "", text))
    return {
        f"{name}{place}": Spec(tuple(int(n) for n in sizes.split(",") if n), _KINDS[kind])
        for place, (kind, sizes) in enumerate(shapes)
    }


def count(step: Step, chip: str) -> dict[str, Any]:
    """Compiles the step in this process, which must not have loaded libtpu."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(compile_child.ENVIRONMENT)
        os.environ["LIBTPU_INIT_ARGS"] += f" {machine_code.flags(directory)}"
        import jax
        from jax.sharding import SingleDeviceSharding

        from bigbird_ja.train.engines.lowering.stablehlo import as_jax_function

        (device, *_) = compile_child.devices_of(compile_child.Place(CHIPS[chip].topology))
        arguments = [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=SingleDeviceSharding(device))
            for spec in step.traced.inputs.values()
        ]
        run = jax.jit(as_jax_function(step.traced, "tpu"), donate_argnums=tuple(step.donated))
        compiled = run.lower(*arguments).compile()
        code = machine_code.collect(directory)
    module = hlo.parse(compiled.as_text())
    priced = costs.costs(module)
    costs_by_code = roofline.code_costs(module, priced, code, CHIPS[chip])
    of_layers = sum(c.cycles for c in costs_by_code if "/layer_" in c.cost.instruction.op_name)
    return {
        "priced_cycles": round(sum(cost.cycles for cost in priced)),
        **breakdown.code_figures(
            costs_by_code, roofline.step_time(module, costs_by_code, CHIPS[chip])
        ),
        "code_cycles_of_layers": round(of_layers),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    tracing = commands.add_parser("trace")
    tracing.add_argument("checkout")
    tracing.add_argument("output")
    tracing.add_argument("--layers", type=int, default=12)
    counting = commands.add_parser("count")
    counting.add_argument("step")
    counting.add_argument("chip", choices=sorted(machine_code.MATMUL_FLOPS))
    args = parser.parse_args()
    if args.command == "trace":
        with open(args.output, "wb") as stream:
            stream.write(msgspec.msgpack.encode(trace(args.checkout, args.layers)))
        return
    with open(args.step, "rb") as stream:
        step = msgspec.msgpack.decode(stream.read(), type=Step)
    print(msgspec.json.encode(count(step, args.chip)).decode())


if __name__ == "__main__":
    main()
