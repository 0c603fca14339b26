"""`make-data` and the input pipeline against the ancestor and raw SentencePiece.

    make bench-data        # or: python -m scripts.bench_data [--input=...] [--tokenizer=...]

Text: `--input`, else the file named by BIGBIRD_JA_REAL_TEXT, else a generated corpus. Without
`--tokenizer` one of 32,000 pieces is trained first (minutes). Prints ratios to the ancestor's own
figures: 0.21 MB of text per second on one core with ten duplicates, 35 bytes stored per byte of
text. "cpu" is processor time of all processes, which tells more than the clock on a busy machine.
`--large_gb 2` also shows rate, memory and scratch space on a large corpus (a quarter of an hour).
`--rows=shared` measures that alone. `--rev=COMMIT` times make-data and the input pipeline against
that commit's instead, in pairs.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import app, flags

from bigbird_ja.process.console import human_bytes, table
from scripts import revisions

ANCESTOR_MB_PER_SECOND = 0.21
ANCESTOR_BYTES_PER_BYTE = 35.0

_INPUT = flags.DEFINE_string("input", None, "A .jsonl or .jsonl.gz of documents.")
_TOKENIZER = flags.DEFINE_string("tokenizer", None, "A .model file; else one is trained.")
_WORKERS = flags.DEFINE_integer("num_workers", 2, "Processes.")
_LARGE = flags.DEFINE_float("large_gb", 0.0, "Also a generated corpus of so many GB.")
_REV = flags.DEFINE_string("rev", None, "An earlier commit to time against.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Pairs to time, with --rev.")
_ROWS = flags.DEFINE_list("rows", ["raw", "modes", "shared", "pipeline"], "What to measure.")


@dataclass
class Run:
    """One command: seconds by the clock and of processor time, peak memory, its results."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int  # of all processes together
    peak_disk: int  # bytes in --output_dir
    results: dict[str, Any]


def run(*arguments: str) -> Run:
    """Runs `bigbird-ja` and watches it."""
    command = [sys.executable, "-m", "bigbird_ja", *arguments, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    folder = next((a.partition("=")[2] for a in arguments if a.startswith("--output_dir=")), "")
    peak = [0, 0]
    watcher = threading.Thread(target=_watch, args=(process, peak, folder), daemon=True)
    watcher.start()
    output = process.communicate()[0].decode()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    watcher.join()
    return Run(seconds, cpu, peak[0], peak[1], json.loads(output.strip().splitlines()[-1]))


def _watch(process: subprocess.Popen[bytes], peak: list[int], folder: str) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_private_bytes, _family(process.pid))))
        with contextlib.suppress(FileNotFoundError):  # moved meanwhile
            peak[1] = max(peak[1], sum(p.stat().st_size for p in Path(folder).rglob("*.*")))
        time.sleep(0.2)


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):  # each thread has its own
            for child in file.read_text().split():
                yield from _family(int(child))


def _private_bytes(pid: int) -> int:
    """Proportional set size: what is shared is divided among those who share it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def raw_rates(texts: list[str], tokenizer_path: str) -> list[list[Any]]:
    """Rows: SentencePiece alone, one core, one call, whole documents and sentences."""
    from bigbird_ja.text import sentences, tokenizer, words

    loaded = tokenizer.load(tokenizer_path)
    part = texts[: max(1, len(texts) // 4)]
    split = [s for text in part for s in sentences.split(text)]
    megabytes = sum(len(text.encode()) for text in part) / 1e6
    rows = []
    for name, items in (("sentences", split), ("documents", part)):
        cpu = time.process_time()
        ids = loaded.encode_arrays(items)
        rows.append([f"raw SentencePiece, {name}", megabytes / (time.process_time() - cpu)])
    for kind in ("script", "mecab"):
        few = part if kind == "script" else part[: len(part) // 8]
        size = sum(len(text.encode()) for text in few) / 1e6
        marker = words.word_marker(kind, loaded)
        cpu = time.process_time()
        marker(few, ids[: len(few)])
        rows.append([f"word boundaries, {kind}", size / (time.process_time() - cpu)])
    return rows


def kind_rates(texts: list[str], work: str) -> list[list[Any]]:
    """Rows: the tokenizers of Hugging Face folders on one core, and their own marks of words."""
    from bigbird_ja.text import tokenizer, words
    from testkit import tokenizer_folders

    part = texts[: max(1, len(texts) // 20)]
    megabytes = sum(len(text.encode()) for text in part) / 1e6
    rows = []
    for kind, train in tokenizer_folders.KINDS.items():
        train(Path(work, kind), texts[:60])
        loaded = tokenizer.load_any(str(Path(work, kind)))
        marker = words.word_marker("script", loaded)
        cpu = time.process_time()
        ids = loaded.encode_arrays(part)
        encoded = time.process_time()
        marker(part, ids)
        marked = time.process_time()
        rows.append([kind, megabytes / (encoded - cpu), megabytes / (marked - encoded)])
    return rows


def make_rates(text: str, double: str, size: int, tokenizer: str, work: str) -> list[list[Any]]:
    """Rows: make-data from text to finished shards, in the modes that have a target."""
    common = [f"--tokenizer={tokenizer}", f"--num_workers={_WORKERS.value}"]
    rows = []

    def row(name: str, megabytes: float, done: Run, less: Run | None = None) -> None:
        seconds = done.seconds - (less.seconds if less else 0)
        cpu = done.cpu_seconds - (less.cpu_seconds if less else 0)
        rate, per_core = megabytes / seconds, megabytes / cpu
        stored = done.results["bytes"] / (size * (2 if less else 1))
        rows.append(
            [name, rate, rate / ANCESTOR_MB_PER_SECOND, per_core, stored,
             ANCESTOR_BYTES_PER_BYTE / stored, human_bytes(done.peak_bytes)]
        )  # fmt: skip

    once = run("make-data", f"--input={text}", f"--output_dir={work}/dynamic", *common)
    row("dynamic, start-up included", size / 1e6, once)
    both = [f"--input={text}", f"--input={double}"]
    twice = run("make-data", *both, f"--output_dir={work}/twice", *common)
    row("dynamic, steady state", size / 1e6, twice, once)
    static = ["--masking=static", "--dupe_factor=10"]
    done = run("make-data", f"--input={text}", f"--output_dir={work}/static", *common, *static)
    row("static, ten duplicates", size / 1e6, done)
    mecab = "--word_boundaries=mecab"
    done = run("make-data", f"--input={text}", f"--output_dir={work}/mecab", *common, mecab)
    row("dynamic, words by mecab", size / 1e6, done)
    return rows


def large(gigabytes: float, tokenizer: str, work: str) -> str:
    """One line: rates, peak memory and scratch space on a large corpus of generated articles."""
    from bigbird_ja.data import blocks
    from bigbird_ja.text import articles, corpus

    path = f"{work}/large.jsonl"
    records = [
        json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
        for text in articles.documents(500, seed=1)
    ]
    written = 0
    with open(path, "wb") as file:
        # The same articles again and again: memory is measured here, not text.
        for record in itertools.cycle(records):
            written += file.write(record)
            if written > gigabytes * 1e9:
                break
    size, began = os.path.getsize(path), time.process_time()
    texts = [(corpus.open_corpus([path]).texts(), 1.0)]
    for _ in blocks.cut_into_blocks(texts, 4096, 0.01, 1, collections.Counter()):
        pass
    reading = size / 1e6 / (time.process_time() - began)
    done = run("make-data", f"--input={path}", f"--tokenizer={tokenizer}",
               f"--output_dir={work}/large", f"--num_workers={_WORKERS.value}")  # fmt: skip
    return (
        f"{human_bytes(size)} of JSON, read and cut by one process at {reading:.0f} MB/s,"
        f" {done.results['tokens']:,} tokens: {done.seconds:.0f} s,"
        f" {done.cpu_seconds:.0f} s of processors ({size / 1e6 / done.cpu_seconds:.1f} MB/s per"
        f" core), at most {human_bytes(done.peak_bytes)} of memory in all processes together,"
        f" {human_bytes(done.results['bytes'])} stored, {human_bytes(done.peak_disk)} on the way"
    )


def shared_rates(text: str, size: int, tokenizer: str, work: str) -> list[list[Any]]:
    """Rows: the same data set by two processes, by two parts and their join, and by Ray."""
    common = [f"--input={text}", f"--tokenizer={tokenizer}"]
    ways = {
        "--num_workers=2": [["--num_workers=2"]],
        "--part 1/2, then 2/2, then the join": [
            [part, "--num_workers=1"] for part in ("--part=1/2", "--part=2/2", "--runner=local")
        ],
    }
    if importlib.util.find_spec("ray"):
        ways["--runner=ray, two parts of one process"] = [["--runner=ray", "--num_workers=1"]]
    rows = []
    for number, (name, commands) in enumerate(ways.items()):
        place = f"--output_dir={work}/way-{number}"
        done = [run("make-data", *common, place, *flags) for flags in commands]
        seconds, cpu = sum(d.seconds for d in done), sum(d.cpu_seconds for d in done)
        rows.append([name, f"{seconds:.1f}", f"{cpu:.1f}", size / 1e6 / seconds])
    return rows


# Half a minute of an idle core: the batches that training reads, on one thread.
_READ = """
import sys, time
from bigbird_ja.data import manifest, pipeline
batches = pipeline.batches(manifest.load(sys.argv[1]), sys.argv[1], seed=1, global_batch_size=16)
for number, _ in zip(range(int(sys.argv[2])), batches): pass
"""
_BATCHES_READ = 4000


def against_revision(text: str, tokenizer: str, revision: str, work: str) -> Iterator[list[Any]]:
    """Rows, each once it is measured: make-data and the input pipeline, now and at an earlier
    commit. Each reads the data that it made."""

    def make(name: str, *more: str) -> Callable[[str], list[str]]:
        return lambda place: [
            sys.executable, "-m", "bigbird_ja", "make-data", f"--input={text}",
            f"--tokenizer={tokenizer}", f"--num_workers={_WORKERS.value}",
            f"--output_dir={work}/{name}-{place}", *more,
        ]  # fmt: skip

    def read(place: str) -> list[str]:
        made = f"{work}/dynamic-{place.rstrip('0123456789')}0"
        return [sys.executable, "-c", _READ, made, str(_BATCHES_READ)]

    static = ("--masking=static", "--dupe_factor=10")
    commands = {
        "make-data, dynamic": make("dynamic"),
        "make-data, static, ten duplicates": make("static", *static),
    }
    if "pipeline" in _ROWS.value:
        commands[f"input pipeline, {_BATCHES_READ:,} batches of 16"] = read
    with revisions.tree_of(revision) as before:
        for name, command in commands.items():
            yield revisions.compare(name, before, _ROUNDS.value, command).row()


def _texts(path: str) -> list[str]:
    from bigbird_ja.text import corpus

    return list(corpus.open_corpus([path]).texts())


def _prepare(work: str) -> tuple[str, str]:
    source = _INPUT.value or os.environ.get("BIGBIRD_JA_REAL_TEXT")
    if not source:
        source = f"{work}/sample.jsonl"
        run("sample", f"--output={source}", "--documents=4000")
    tokenizer = _TOKENIZER.value
    if not tokenizer:
        run("tokenize", f"--input={source}", f"--output_prefix={work}/ja")
        tokenizer = f"{work}/ja.model"
    return source, tokenizer


def main(_: list[str]) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory(prefix="bench-data-") as work:
        source, tokenizer = _prepare(work)
        if _REV.value:
            for row in against_revision(source, tokenizer, _REV.value, work):
                print(f"{table([row], revisions.HEADER)}\n", flush=True)
            return
        texts = _texts(source)
        size = sum(len(text.encode()) for text in texts)
        double = f"{work}/double.jsonl"
        with open(double, "w", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        print(f"{source}: {size / 1e6:.1f} MB of text, {len(texts):,} documents")
        if "raw" in _ROWS.value:
            _show(raw_rates(texts, tokenizer), ["on one core", "MB/s"])
            header = ["tokenizers of folders, on one core", "MB/s", "MB/s of word boundaries"]
            _show(kind_rates(texts, work), header)
        del texts
        if "modes" in _ROWS.value:
            header = ["make-data", "MB/s", "x ancestor", "MB/s per core of cpu", "bytes per byte",
                      "x smaller", "memory"]  # fmt: skip
            _show(make_rates(source, double, size, tokenizer, work), header)
        if "shared" in _ROWS.value:
            header = ["make-data, one data set, start-up included", "s", "s of cpu", "MB/s"]
            _show(shared_rates(double, size, tokenizer, work), header)
        if _LARGE.value:
            print(f"\n{large(_LARGE.value, tokenizer, work)}")
        if {"modes", "pipeline"} <= set(_ROWS.value):  # reads what the modes made
            for name in ("dynamic", "static"):
                print(flush=True)
                command = [sys.executable, "-m", "scripts.bench_pipeline"]
                subprocess.run([*command, f"--data_dir={work}/{name}"], check=True)


def _show(rows: list[list[Any]], header: list[str]) -> None:
    print(f"\n{table(rows, header)}", flush=True)


if __name__ == "__main__":
    app.run(main)
