"""Compare the speed of training on this CPU with that of transformers (`make bench-cpu`).

    python -m scripts.bench_cpu
    python -m scripts.bench_cpu --only full

`pretrain` and a PyTorch loop with a class of transformers train models of the same shape in
float32 with AdamW. transformers uses two threads, so run this on two cores. A batch contains 4
sequences of 1,024 random tokens. Each program applies its default dropout. The programs take turns,
so that a change of the machine's speed affects both. The ratio is our tokens per second divided by
those of transformers. The row "products" compares how fast XLA and PyTorch compute only the matrix
products of a layer. A train step cannot exceed these rates.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bigbird_ja.model_dir.log import read_metrics
from bigbird_ja.process.console import table
from scripts.bench_restart import PROGRAM
from testkit import ROOT, synthetic

BATCH, LENGTH, VOCABULARY, PREDICTIONS = 4, 1024, 32_000, 154
# A round has STEPS steps. The first WARM steps include tracing and are not counted.
ROUNDS, STEPS, WARM = 2, 8, 3

# Sizes (m, k, n) of a layer's matrix products [m, k] x [k, n], with width 512: those of the forward
# pass, and those that compute the gradients of weights.
PRODUCTS = ((4096, 512, 2048), (4096, 2048, 512), (512, 4096, 2048), (4096, 512, 512))

# For each shape, our settings, the class in `transformers`, and the arguments of its configuration.
SHAPES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "bigbird": (
        {
            **{"hidden_size": 512, "num_layers": 6, "num_attention_heads": 8},
            "intermediate_size": 2048,
        },
        "BigBird",
        {"attention_type": "block_sparse", "block_size": 64, "num_random_blocks": 3},
    ),
    "modernbert": (
        {
            **{"architecture": "modernbert", "hidden_size": 512, "num_layers": 6},
            **{"num_attention_heads": 8, "intermediate_size": 768},
        },
        "ModernBert",
        {"global_attn_every_n_layers": 3, "local_attention": 128, "attn_implementation": "sdpa"},
    ),
    "full": (
        {
            **{"hidden_size": 384, "num_layers": 12, "num_attention_heads": 12},
            **{"intermediate_size": 1536, "attention_type": "original_full"},
            **{"hidden_act": "gelu"},
        },
        "Bert",
        {"attn_implementation": "sdpa"},
    ),
}


def measure_ours(settings: dict[str, Any], work: Path) -> list[float]:
    """Return the seconds of each training step of `pretrain`, without the first `WARM` ones."""
    synthetic.write(
        work / "data",
        (64,) * 4,
        seq_length=LENGTH,
        vocab_size=VOCABULARY,
        max_predictions_per_seq=PREDICTIONS,
    )
    (work / "data" / "tokenizer.model").write_bytes(b"not read by training")
    keys = {f"model.{key}": value for key, value in settings.items()}
    keys |= {"training.dtype": "float32", "training.warmup_steps": 0, "training.log_every_steps": 1}
    line = [*PROGRAM, "pretrain", f"--data_dir={work / 'data'}", f"--model_dir={work / 'model'}"]
    line += [f"--num_train_steps={STEPS}", f"--batch_size={BATCH}"]
    line += [f"--set={key}={value}" for key, value in keys.items()]
    subprocess.run(line, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    seconds = [each["train_seconds"] or 0.0 for each in read_metrics(str(work / "model"))]
    return [after - before for before, after in itertools.pairwise(seconds)][WARM:]


def measure_theirs(name: str, settings: dict[str, Any], more: dict[str, Any]) -> list[float]:
    """Run `train_theirs` in a new process, and return the seconds of steps after `WARM` steps."""
    call = [sys.executable, "-m", "scripts.bench_cpu", "--child"]
    done = subprocess.run(
        [*call, json.dumps([name, settings, more])],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])[WARM:]


def train_theirs(name: str, settings: dict[str, Any], more: dict[str, Any]) -> list[float]:
    """Train `{name}ForMaskedLM` on random tokens, and return the seconds of each step."""
    import torch
    import transformers

    shape = {
        "hidden_size": settings["hidden_size"],
        "num_hidden_layers": settings["num_layers"],
        "num_attention_heads": settings["num_attention_heads"],
        "intermediate_size": settings["intermediate_size"],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LENGTH,
    }
    implementation = more.get("attn_implementation")
    own = {key: value for key, value in more.items() if key != "attn_implementation"}
    if name == "ModernBert":
        own |= dict.fromkeys(("pad_token_id", "cls_token_id", "bos_token_id"), 0)
        own |= dict.fromkeys(("sep_token_id", "eos_token_id"), 0)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**shape, **own)
    if implementation:
        config._attn_implementation = implementation
    model = getattr(transformers, f"{name}ForMaskedLM")(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01)
    seconds = []
    for _ in range(STEPS):
        ids = torch.randint(11, VOCABULARY, (BATCH, LENGTH))
        labels = torch.full_like(ids, -100)
        labels[:, :PREDICTIONS] = ids[:, :PREDICTIONS]
        start = time.monotonic()
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.monotonic() - start)
    return seconds


def time_products(library: str) -> list[float]:
    """Return the seconds of each pass over `PRODUCTS`, without the first `WARM` passes.

    The library is "jax" or "torch". Each library is measured in its own process.
    """
    if library == "torch":
        import torch

        torch.set_num_threads(2)
        pairs = [(torch.ones(m, k), torch.ones(k, n)) for m, k, n in PRODUCTS]

        def run() -> None:
            for left, right in pairs:
                left @ right
    else:
        import jax
        import jax.numpy as jnp

        arrays = [(jnp.ones((m, k)), jnp.ones((k, n))) for m, k, n in PRODUCTS]
        multiply = jax.jit(jnp.matmul)

        def run() -> None:
            for left, right in arrays:
                multiply(left, right).block_until_ready()

    seconds = []
    for _ in range(20):
        start = time.monotonic()
        run()
        seconds.append(time.monotonic() - start)
    return seconds[WARM:]


def compare_products() -> tuple[str, ...]:
    """Return the table row with GFLOP/s of XLA's and PyTorch's matrix products and their ratio."""
    seconds: dict[str, list[float]] = {"jax": [], "torch": []}
    for _ in range(ROUNDS):
        for library, found in seconds.items():
            call = [sys.executable, "-m", "scripts.bench_cpu", "--products", library]
            environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
            done = subprocess.run(
                call, cwd=ROOT, check=True, stdout=subprocess.PIPE, env=environ, text=True
            )
            found.extend(json.loads(done.stdout.splitlines()[-1]))
    operations = sum(2 * m * k * n for m, k, n in PRODUCTS)
    rates = [operations / statistics.median(found) / 1e9 for found in seconds.values()]
    return "products", *(f"{rate:.0f}" for rate in rates), f"{rates[0] / rates[1]:.2f} x"


def main() -> None:
    """Print the tokens per second of `pretrain` and transformers, and their ratio, by shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=(*SHAPES, "products"), help="one of the rows")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--products", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(train_theirs(*json.loads(given.child))))
        return
    if given.products:
        print(json.dumps(time_products(given.products)))
        return
    if given.only in (None, "products"):
        header = ("", "XLA, GFLOP/s", "PyTorch", "ratio")
        print(table([compare_products()], header), flush=True)
    rows = []
    for name in [given.only] if given.only else SHAPES:
        if name not in SHAPES:
            continue
        settings, theirs, more = SHAPES[name]
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                seconds[0].extend(measure_ours(settings, Path(folder)))
            seconds[1].extend(measure_theirs(theirs, settings, more))
        rates = [BATCH * LENGTH / statistics.median(each) for each in seconds]
        rows.append((name, *(f"{rate:.0f}" for rate in rates), f"{rates[0] / rates[1]:.2f} x"))
        print(table(rows[-1:], ("shape", "ours, tokens/s", "transformers", "ratio")), flush=True)


if __name__ == "__main__":
    main()
