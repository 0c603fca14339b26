"""Measure `make-data` and the input pipeline, relative to Google's BigBird (the ancestor).

    make bench-data        # or: python -m scripts.bench_data [--input=...] [--tokenizer=...]

The text is the file `--input`, else the file that the environment variable BIGBIRD_JA_REAL_TEXT
names, else a generated corpus. Without `--tokenizer`, a tokenizer of 32,000 entries is trained
first, which takes minutes. With ten copies of each text (dupe_factor), the ancestor reads 0.21 MB
of text per second on one core, and stores 35 bytes per byte of text. The column "MB/s per core of
cpu" is computed from the processor time of all processes, since elapsed time means little on a busy
machine. `--large_gb 2` also measures a generated corpus of 2 GB, which takes 15 minutes.
"""

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from absl import app, flags

from bigbird_ja.process.console import format_bytes, table

ANCESTOR_MB_PER_SECOND = 0.21
ANCESTOR_BYTES_PER_BYTE = 35.0

_INPUT = flags.DEFINE_string("input", None, "A .jsonl or .jsonl.gz of documents.")
_TOKENIZER = flags.DEFINE_string("tokenizer", None, "A .model file; else one is trained.")
_WORKERS = flags.DEFINE_integer("num_workers", 2, "Processes.")
_LARGE = flags.DEFINE_float("large_gb", 0.0, "Size of a generated corpus to measure too.")


@dataclass
class Finished:
    """Time, memory and results of a finished command.

    Attributes:
        seconds: elapsed time.
        cpu_seconds: processor time of the command and its child processes.
        peak_bytes: peak memory of the command with its child processes. Shared memory counts once.
        results: output of the command's --json.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    results: dict[str, Any] = field(default_factory=dict)


def run(*arguments: str) -> Finished:
    """Run a command of `bigbird-ja`, and measure its time and memory."""
    command = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    done = Finished()
    start, before = time.monotonic(), os.times()
    with psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            # A child process may end before its memory is read.
            with contextlib.suppress(psutil.Error):
                family = [process, *process.children(recursive=True)]
                memory = sum(one.memory_full_info().pss for one in family)
                done.peak_bytes = max(done.peak_bytes, memory)
            time.sleep(0.2)
        output = process.stdout.read().decode()
    done.seconds, after = time.monotonic() - start, os.times()
    done.cpu_seconds = after.children_user - before.children_user
    done.cpu_seconds += after.children_system - before.children_system
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
    done.results = json.loads(output.strip().splitlines()[-1])
    return done


def _rate(texts: list[str], work: Callable[[], Any]) -> tuple[float, Any]:
    """Call `work`, which processes `texts`, and return its rate and its result.

    The rate is in megabytes of text per second of processor time.
    """
    began = time.process_time()
    result = work()
    seconds = time.process_time() - began
    return sum(len(text.encode()) for text in texts) / 1e6 / seconds, result


def kind_rates(texts: list[str], work: str) -> list[list[Any]]:
    """Measure how fast each kind of Hugging Face tokenizer encodes and finds word starts.

    Returns:
        A row for each kind: its name, megabytes of text per second that one core encodes, and
            megabytes of text per second in which one core finds word starts.
    """
    from bigbird_ja.huggingface.tokenizer import read_tokenizer
    from bigbird_ja.text import words
    from testkit import tokenizer_folders

    part, rows = texts[: max(1, len(texts) // 20)], []
    for kind, train in tokenizer_folders.KINDS.items():
        train(Path(work, kind), texts[:60])
        loaded = read_tokenizer(str(Path(work, kind)))
        encoding, ids = _rate(part, functools.partial(loaded.encode_arrays, part))
        mark = functools.partial(words.make_word_marker("script", loaded), part, ids)
        rows.append([kind, encoding, _rate(part, mark)[0]])
    return rows


def make_rates(text: str, double: str, size: int, tokenizer: str, work: str) -> list[list[Any]]:
    """Measure `make-data` with dynamic and with static masking.

    Args:
        text: file of the corpus.
        double: file with a copy of the corpus. As a second input, this file adds time without
            start-up.
        size: bytes of text in the corpus.
        tokenizer: file of the tokenizer.
        work: folder for the data sets.
    """
    rows: list[list[Any]] = []

    def row(name: str, *more: str, less: Finished | None = None) -> Finished:
        inputs = [f"--input={text}", *([f"--input={double}"] if less else [])]
        place = f"--output_dir={work}/mode-{len(rows)}"
        common = [f"--tokenizer={tokenizer}", f"--num_workers={_WORKERS.value}", place]
        done = run("make-data", *inputs, *common, *more)
        rate = size / 1e6 / (done.seconds - (less.seconds if less else 0))
        per_core = size / 1e6 / (done.cpu_seconds - (less.cpu_seconds if less else 0))
        stored = done.results["bytes"] / (size * (2 if less else 1))
        ratios = [rate / ANCESTOR_MB_PER_SECOND, per_core, stored, ANCESTOR_BYTES_PER_BYTE / stored]
        rows.append([name, rate, *ratios, format_bytes(done.peak_bytes)])
        return done

    once = row("dynamic, start-up included")
    row("dynamic, steady state", less=once)
    row("static, ten duplicates", "--masking=static", "--dupe_factor=10")
    return rows


def large(gigabytes: float, tokenizer: str, work: str) -> str:
    """Describe the time and peak memory of `make-data` on a large generated corpus."""
    from bigbird_ja.text import articles

    path, written = f"{work}/large.jsonl", 0
    made = articles.generate(500, seed=1)
    records = [json.dumps({"text": t}, ensure_ascii=False).encode() + b"\n" for t in made]
    with open(path, "wb") as file:
        # The corpus repeats 500 articles, since memory does not depend on their content.
        for record in itertools.cycle(records):
            written += file.write(record)
            if written > gigabytes * 1e9:
                break
    common = [f"--tokenizer={tokenizer}", f"--num_workers={_WORKERS.value}"]
    done = run("make-data", f"--input={path}", f"--output_dir={work}/large", *common)
    return (
        f"{format_bytes(written)} of JSON: {done.seconds:.0f} s, {done.cpu_seconds:.0f} s of"
        f" processors ({written / 1e6 / done.cpu_seconds:.1f} MB/s per core), at most"
        f" {format_bytes(done.peak_bytes)} of memory in all processes together,"
        f" {format_bytes(done.results['bytes'])} stored"
    )


# Program that reads batches for about 30 seconds of processor time. It prints twice the number of
# sequences that it reads per second of processor time, as the rate of two idle cores.
_READ = """
import sys, time
from bigbird_ja.data import manifest, pipeline
from bigbird_ja.settings.resolve import given_layers, resolve_config
where, made = sys.argv[1], manifest.load(sys.argv[1])
config, _ = resolve_config(given_layers({"training.global_batch_size": 16}))
batches = pipeline.read_batches(config, made, where)
began = time.process_time()
for number, _ in zip(range(int(sys.argv[2])), batches): pass
print(f"{2 * 16 * int(sys.argv[2]) / (time.process_time() - began):,.0f}")
"""
_BATCHES_READ = 4000


def pipeline_rates(work: str) -> list[list[Any]]:
    """Estimate the input pipeline's sequences per second on two idle cores from processor time."""
    rows = []
    for masking, place in (("dynamic", "mode-0"), ("static", "mode-2")):
        read = [sys.executable, "-c", _READ, f"{work}/{place}", str(_BATCHES_READ)]
        done = subprocess.run(read, stdout=subprocess.PIPE, text=True, check=True)
        rows.append([f"{masking} masks", done.stdout.split()[-1]])
    return rows


def _prepare(work: str) -> tuple[str, str]:
    source = _INPUT.value or os.environ.get("BIGBIRD_JA_REAL_TEXT")
    if not source:
        source = f"{work}/sample.jsonl"
        run("sample", f"--output={source}", "--documents=4000")
    if not _TOKENIZER.value:
        done = run("tokenize", f"--input={source}", f"--output_prefix={work}/ja")
        print(f"tokenize: {done.seconds:.0f} s, {done.cpu_seconds:.0f} s of processors")
    return source, _TOKENIZER.value or f"{work}/ja.model"


def main(_: list[str]) -> None:
    """Run all measurements and print their tables."""
    from bigbird_ja.text import corpus

    with tempfile.TemporaryDirectory(prefix="bench-data-") as work:
        source, tokenizer = _prepare(work)
        texts = list(corpus.open_corpus([source]).texts())
        size = sum(len(text.encode()) for text in texts)
        double = f"{work}/double.jsonl"
        with open(double, "w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        print(f"{source}: {size / 1e6:.1f} MB of text, {len(texts):,} documents")
        header = ["tokenizers of folders, on one core", "MB/s", "MB/s of word boundaries"]
        _show(kind_rates(texts, work), header)
        del texts
        header = ["make-data", "MB/s", "x ancestor", "MB/s per core of cpu"]
        header += ["bytes per byte", "x smaller", "memory"]
        _show(make_rates(source, double, size, tokenizer, work), header)
        if _LARGE.value:
            print(f"\n{large(_LARGE.value, tokenizer, work)}")
        _show(pipeline_rates(work), ["input pipeline, batches of 16", "sequences/s"])


def _show(rows: list[list[Any]], header: list[str]) -> None:
    print(f"\n{table(rows, header)}", flush=True)


if __name__ == "__main__":
    app.run(main)
