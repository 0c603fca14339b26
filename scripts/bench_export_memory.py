"""Measures memory of an exported model in PyTorch against its length: ours and transformers' own.

    .venv/bin/python -m scripts.bench_export_memory [--lengths 1024,2048,4096,8192,16384]

One layer of two heads of 64 (what a layer needs grows with its heads alone), forward and backward,
float32, one sequence; each length and way in a process of its own. Counted is the peak above what
the process held before the step: on a CPU the resident memory (Linux), with `--device cuda` what
PyTorch allocates, and then `flex_attention` is measured too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import multiprocessing
import os
import pathlib
import sys
from typing import Any

from bigbird_ja.process import console

HEADS, SIZE, BLOCK, RANDOM = 2, 64, 64, 3
OURS, FLEX = "own code", "own code, flex"
WAYS = (OURS, "transformers, block-sparse", "transformers, full")


def build(way: str, length: int) -> Any:
    """Build the model of a way, for sequences of a length.

    Raises:
        ImportError: no torch or transformers.
    """
    from transformers.models import big_bird

    from bigbird_ja.export import modeling_bigbird_ja as ours

    config = big_bird.BigBirdConfig(
        vocab_size=1000,
        hidden_size=HEADS * SIZE,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=4 * HEADS * SIZE,
        max_position_embeddings=length,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        attention_probs_dropout_prob=0.0,
        attention_type="original_full" if way.endswith("full") else "block_sparse",
    )
    config.bigbird_ja = {"random_pattern": "rolled", "pattern_seed": 0}
    if way == FLEX:
        config._attn_implementation = "flex_attention"
    kind = ours.BigBirdJaModel if way in (OURS, FLEX) else big_bird.BigBirdModel
    return kind(config, add_pooling_layer=False)


def measure(way: str, length: int, device: str) -> float:
    """Return the megabytes (10^6) above the start of one step in this process."""
    import torch

    torch.manual_seed(0)
    model = build(way, length).to(device).train()
    ids = torch.randint(1, 1000, (1, length), device=device)
    if device == "cuda":  # compiled first, and the allocator warm
        model(ids).last_hidden_state.sum().backward()
        model.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _peak(device)
    model(ids).last_hidden_state.sum().backward()
    return (_peak(device) - before) / 1e6


def _peak(device: str) -> int:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> int:
    """Measure every way at every length, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    os.environ["USE_TF"] = "0"  # transformers 4 would import TensorFlow too
    importlib.import_module("bigbird_ja.export.modeling_bigbird_ja")  # here, for all that follow
    lengths = [int(word) for word in options.lengths.split(",")]
    ways = (OURS, FLEX, *WAYS[1:]) if options.device == "cuda" else WAYS
    measured = {way: [_apart(way, length, options.device) for length in lengths] for way in ways}
    heads = [f"{way}, MB" if way == OURS else f"{way}, MB (x ours)" for way in ways]
    rows = [
        (
            f"{length:,}",
            *(_cell(values[place], measured[OURS][place]) for values in measured.values()),
        )
        for place, length in enumerate(lengths)
    ]
    print(console.table(rows, ("tokens", *heads)))
    return 0


def _apart(way: str, length: int, device: str) -> float | None:
    """Run `measure` in a process of its own; None where it did not come to an end."""
    context = multiprocessing.get_context("fork")  # what is imported is there already
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(measure, way, length, device).result()
        except Exception as error:  # killed for memory, or refused by a version
            console.log(f"{way} at {length:,}: {type(error).__name__}: {str(error)[:200]}")
            return None


def _cell(megabytes: float | None, ours: float | None) -> str:
    if megabytes is None:
        return "did not run"
    ratio = "" if ours is None or megabytes == ours else f" ({megabytes / ours:.1f})"
    return f"{megabytes:,.0f}{ratio}"


if __name__ == "__main__":
    sys.exit(main())
