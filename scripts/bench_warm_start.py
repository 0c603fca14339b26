"""Is a model of short sequences a cheap road to long ones? `make bench-warm-start` (real text).

Three runs of `pretrain`, as a user would start them, on the same text with the same tokenizer:

    short       a BERT of 512 tokens (full attention), trained from scratch
    warm start  sequences of 4,096 tokens, --init_from the short one, for a tenth of the steps
    scratch     sequences of 4,096 tokens from scratch

and the loss of the last two on held-out sequences of 4,096 tokens. Every step has the same number
of tokens, one long sequence. The model is tiny, so that two cores can do it. Run again, it goes on
where it was; --quick is 64 and 512 tokens in blocks of 16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from bigbird_ja.process import console
from bigbird_ja.settings.resolve import resolve_config
from bigbird_ja.settings.values import config_to_yaml

TEXT = "BIGBIRD_JA_REAL_TEXT"
# Both lengths, the block size, tokens per step.
WHOLE, QUICK = ((512, 4096), 64, 4096), ((64, 512), 16, 2048)
MODEL = (
    "tokenize.max_sentences=8000",
    "make_data.mask_unit=whole_word",
    "training.warmup_steps=20",
    "training.eval_every_steps=1000000",
)


def main(arguments: list[str] | None = None) -> int:
    """Makes data and models and prints both losses; 1 where the warm start is not the better."""
    options = _options(arguments)
    text = os.environ.get(TEXT)
    if not text:
        raise SystemExit(f"{TEXT} names no text: set it to a .jsonl.gz file of real text")
    os.makedirs(options.work_dir, exist_ok=True)
    lengths, block, tokens = QUICK if options.quick else WHOLE
    short, whole = lengths
    configs = {length: _write_config(options, length, block, tokens) for length in lengths}
    prefix = f"{options.work_dir}/tokenizer"
    _run("tokenize", f"--config={configs[whole]}", f"--input={text}", f"--output_prefix={prefix}")
    data = {}
    for length, config in configs.items():
        data[length] = f"{options.work_dir}/data-{length}"
        _run(
            "make-data", f"--config={config}", f"--input={text}", f"--tokenizer={prefix}.model",
            f"--output_dir={data[length]}",
        )  # fmt: skip
    runs = {
        "short": (short, options.short_steps, []),
        "warm start": (
            whole,
            options.steps // 10,
            [f"--init_from={options.work_dir}/short"],
        ),
        "scratch": (whole, options.steps, []),
    }
    rows, losses = [], {}
    for name, (length, steps, more) in runs.items():
        model = f"{options.work_dir}/{name.replace(' ', '-')}"
        start = time.monotonic()
        _run(
            "pretrain", f"--config={configs[length]}", f"--data_dir={data[length]}",
            f"--model_dir={model}", f"--num_train_steps={steps}", *more,
        )  # fmt: skip
        seconds = time.monotonic() - start
        found = _run(
            "evaluate", f"--model_dir={model}", f"--data_dir={data[length]}",
            f"--max_batches={options.eval_batches}",
        )  # fmt: skip
        losses[name] = found["masked_lm_loss"]
        rows.append((name, length, steps, steps * tokens, losses[name], round(seconds)))
    header = ("run", "tokens", "steps", "tokens seen", "held-out loss", "seconds")
    print(console.table(rows, header))
    print(json.dumps(losses))
    return int(losses["warm start"] >= losses["scratch"])


def _write_config(options: argparse.Namespace, length: int, block: int, tokens: int) -> str:
    """A file of settings, since commands refuse a --set that they do not use."""
    sets = [*MODEL, f"make_data.seq_length={length}"]
    sets.append(f"training.global_batch_size={tokens // length}")
    sets.append(f"make_data.max_predictions_per_seq={length * 77 // 512}")
    sets.append(f"model.block_size={block}")
    sets.append(f"tokenize.vocab_size={options.vocab_size}")
    config, _ = resolve_config("tiny-cpu", sets)
    path = f"{options.work_dir}/{length}.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(config_to_yaml(config))
    return path


def _run(*arguments: str) -> dict[str, Any]:
    """Runs `bigbird-ja` with --json, its log on standard error. Ends the script where it fails."""
    line = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work_dir", default="out/warm-start")
    parser.add_argument("--steps", type=int, default=1000, help="from scratch; a tenth of it warm")
    parser.add_argument("--short_steps", type=int, default=4000)
    parser.add_argument("--vocab_size", type=int, default=6000)
    parser.add_argument("--quick", action="store_true", help="an eighth of the lengths")
    parser.add_argument("--eval_batches", type=int, default=20, help="of 16,384 held-out tokens")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
