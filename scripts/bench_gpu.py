"""base-4096 on one GPU: our step under JAX's runtime against transformers' BigBird in PyTorch.

    .venv/bin/python -m scripts.bench_gpu [--config base-4096] [--steps 20]

Each way trains in a process of its own, on random tokens of the config's shapes, in bfloat16
(autocast in PyTorch), with AdamW, clipped gradients and dropout. Batches double until memory is
out or the rate falls; a row shows the best one. PyTorch runs block-sparse and full attention, as it
is and under torch.compile, full attention also by scaled_dot_product_attention where transformers
has that for BigBird, and AdamW fused. What does not run says why.

Where there is no GPU it says so and measures nothing. `--device cpu` is for trying the program.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bigbird_ja.process import tensorflow_env

tensorflow_env.prepare(os.environ)

from bigbird_ja.process import console  # noqa: E402
from bigbird_ja.settings.resolve import complete_config, resolve_config  # noqa: E402
from bigbird_ja.settings.schema import Config  # noqa: E402
from bigbird_ja.train.engines import devices  # noqa: E402

WARM_UP = 3  # steps that are not counted
_PATIENCE = 3600.0  # seconds for one measurement: torch.compile takes minutes
_NO_MEMORY = ("OutOfMemoryError", "RESOURCE_EXHAUSTED", "out of memory", "OutOfMemory")


class Way(NamedTuple):
    """One way of training the model."""

    name: str
    attention: str = "block_sparse"
    compiled: bool = False
    sdpa: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's."""
        return self.name.startswith("bigbird-ja")


WAYS = (
    Way("bigbird-ja, pjrt"),
    Way("PyTorch, block-sparse"),
    Way("PyTorch, block-sparse, torch.compile", compiled=True),
    Way("PyTorch, full", "original_full"),
    Way("PyTorch, full, torch.compile", "original_full", compiled=True),
    Way("PyTorch, full, sdpa", "original_full", sdpa=True),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every way and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="base-4096")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--largest", type=int, default=256, help="sequences in a batch at most")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--way", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.way is not None:
        print(json.dumps(_one(options)))
        return 0
    if options.device == "cuda" and not devices.has_gpu():
        print("no NVIDIA GPU with jax for CUDA here (see docs/install.md): nothing was measured")
        return 0
    found = {
        way.name: best(functools.partial(_child, options, number), options.largest)
        for number, way in enumerate(WAYS)
    }
    _print(found)
    return 0


def best(measure: Callable[[int], dict[str, Any]], largest: int) -> dict[str, Any]:
    """The measurement of the batch with the best rate; batches double from 1.

    Args:
        measure: of a batch: `tokens_per_second`, or `error`.
        largest: batch.
    """
    found: dict[str, Any] = {"error": "not measured"}
    batch = 1
    while batch <= largest:
        result = measure(batch)
        if "error" in result:
            return found if "error" not in found else result
        if result["tokens_per_second"] < found.get("tokens_per_second", 0.0):
            break
        found, batch = {**result, "batch": batch}, batch * 2
    return found


def _child(options: argparse.Namespace, way: int, batch: int) -> dict[str, Any]:
    """One measurement in a process of its own, which gives all memory back."""
    command = [
        sys.executable, "-m", "scripts.bench_gpu", f"--config={options.config}",
        f"--steps={options.steps}", f"--device={options.device}", f"--way={way}",
        f"--batch={batch}", *(f"--set={text}" for text in options.set),
    ]  # fmt: skip
    environ = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # so that a peak is a peak
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environ, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {_PATIENCE:.0f} s"}
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    if any(word in done.stderr for word in _NO_MEMORY):
        return {"error": "out of memory"}
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": (lines or ["no message"])[-1][:200]}


def _one(options: argparse.Namespace) -> dict[str, Any]:
    """In the child: one way, one batch."""
    way = WAYS[options.way]
    settings = [f"training.global_batch_size={options.batch}", "training.warmup_steps=0"]
    settings += ["training.log_every_steps=1000000", *options.set]
    config = complete_config(resolve_config(options.config, settings)[0])
    seconds, peak = (_ours if way.is_ours else _theirs)(config, way, options)
    tokens = options.batch * config.make_data.seq_length
    return {"tokens_per_second": tokens / seconds, "peak_bytes": peak}


def _ours(config: Config, way: Way, options: argparse.Namespace) -> tuple[float, int | None]:
    """Median seconds of a step of the engine, and the device's peak of memory."""
    import tensorflow as tf

    from bigbird_ja.train.engines.pjrt import PjrtEngine
    from bigbird_ja.train.warm_start import first_state
    from scripts.bench_model import fixed_batch

    found = devices.find(False)
    assert found.platform == options.device, found
    one = devices.Devices(found.platform, found.devices[:1])
    batch = fixed_batch(config, seed=1)
    engine = PjrtEngine(
        config, lambda: first_state(config, None, None),
        lambda host, hosts: tf.data.Dataset.from_tensors(batch).repeat(), one,
    )  # fmt: skip
    engine.begin()
    try:
        step = 0

        def train() -> None:
            nonlocal step
            step += 1
            engine.advance(step)
            engine.settle()

        seconds = _median(train, options.steps)
    finally:
        engine.close()
    stats = one.devices[0].memory_stats() or {}
    return seconds, stats.get("peak_bytes_in_use")


def _theirs(config: Config, way: Way, options: argparse.Namespace) -> tuple[float, int | None]:
    """The same of transformers' model."""
    import torch

    from scripts.bench_model import fixed_batch

    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    model = _model(config, way).to(device).train()
    run = torch.compile(model) if way.compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0.01, fused=options.device == "cuda"
    )
    batch = _torch_batch(fixed_batch(config, seed=1), device)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    seconds = _median(train, options.steps)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return seconds, peak


def _model(config: Config, way: Way) -> Any:
    """transformers' BigBird of the config's sizes; raises where it has no such attention."""
    import transformers

    from bigbird_ja.export.huggingface import sizes

    values = {**sizes(config), "attention_type": way.attention}
    if way.sdpa:
        values["attn_implementation"] = "sdpa"
    return transformers.BigBirdForMaskedLM(transformers.BigBirdConfig(**values))


def _torch_batch(batch: Any, device: Any) -> dict[str, Any]:
    """A batch of ours as transformers takes it: labels at the masked places, -100 elsewhere."""
    import numpy as np
    import torch

    ids = batch["input_ids"].astype(np.int64)
    labels = np.full_like(ids, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}
    return {name: torch.from_numpy(value).to(device) for name, value in arrays.items()}


def _median(train: Callable[[], None], steps: int) -> float:
    """Seconds of a step, compilation and the first ones left out."""
    for _ in range(WARM_UP):
        train()
    times = [time.perf_counter()]
    for _ in range(steps):
        train()
        times.append(time.perf_counter())
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def _print(found: dict[str, dict[str, Any]]) -> None:
    ours = found[WAYS[0].name].get("tokens_per_second")
    rows = []
    for name, result in found.items():
        if "error" in result:
            rows.append((name, result["error"], "", "", ""))
            continue
        rate, peak = result["tokens_per_second"], result["peak_bytes"]
        memory = console.human_bytes(peak) if peak else "?"
        against = f"{ours / rate:.2f}" if ours else ""
        rows.append((name, str(result["batch"]), f"{rate:,.0f}", memory, against))
    print(console.table(rows, ("way", "batch", "tokens/s", "peak memory", "ours is x")))
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
