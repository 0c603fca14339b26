"""Clean Japanese text from the web with datatrove: language, quality, near-duplicates.

    pip install "datatrove[io,processing]" "spacy[ja]"
    python docs/examples/clean.py --input web --output cleaned
    bigbird-ja make-data --input cleaned/text --tokenizer ja.model --output_dir data

--input is a folder of JSON lines files (.jsonl, .jsonl.gz, .jsonl.zst) with a `text` in each line,
such as those of FineWeb2, or one such file. A worker processes one file at a time. OUTPUT/text
contains the documents that pass all rules. OUTPUT/removed contains the other documents, in a folder
for each rule. Read some of them before you trust a rule. Rerun the command after an interruption to
continue. OUTPUT/work may be deleted afterwards.

Rules and thresholds are those of FineWeb2 for Japanese (huggingface/fineweb-2,
configs/jpn_Jpan.yml), except for the language. FineWeb2 detects the language by a model that must
be downloaded (`LanguageFilter(backend="glotlid")`). This program detects Japanese by the fraction
of kana, which Chinese text does not contain. It does not remove personal data and web addresses,
for which datatrove has `PIIFormatter` and `URLFilter`.
"""

import argparse
import gzip
import json
import os
import re
import sys
from pathlib import Path

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import (
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LambdaFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig

JAPANESE = "jpn_Jpan"  # For this language, datatrove splits texts into words by Sudachi.
KANA = re.compile("[ぁ-ゖァ-ヺーｦ-ﾟ]")
# Minimum fraction of kana among letters. The fraction is about a half in prose, and lower in lists
# of kanji names.
MIN_KANA = 0.2
STOP_WORDS = list("のにをはたてがとで年し・月れさ")
TOP_N_GRAMS = ((2, 0.121), (3, 0.129), (4, 0.145))
REPEATED_N_GRAMS = ((5, 0.307), (6, 0.283), (7, 0.264), (8, 0.248), (9, 0.234), (10, 0.223))
MINHASH = MinhashConfig(
    hash_config=HashConfig(precision=64), num_buckets=14, hashes_per_bucket=8, n_grams=5
)
REMOVED = ("language", "repetition", "lines", "words", "duplicates")


def is_japanese(document: Document) -> bool:
    """Return whether enough letters of a document are kana."""
    text = document.text
    letters = isinstance(text, str) and sum(map(str.isalpha, text))
    return bool(letters) and len(KANA.findall(text)) >= MIN_KANA * letters


def filters(removed: Path) -> list[PipelineStep]:
    """Return datatrove's filters for single documents, the cheapest ones first.

    Each filter writes the documents that it removes to its own folder in `removed`.
    """
    language, repetition, lines, words = (JsonlWriter(str(removed / n)) for n in REMOVED[:4])
    return [
        LambdaFilter(is_japanese, language),
        GopherRepetitionFilter(
            dup_line_frac=0.375,
            dup_para_frac=0,  # 0 disables this rule. Extracted text contains no paragraphs.
            dup_para_char_frac=0,
            dup_line_char_frac=0,  # The rule `char_duplicates_ratio` below replaces this one.
            top_n_grams=TOP_N_GRAMS,
            dup_n_grams=REPEATED_N_GRAMS,
            exclusion_writer=repetition,
            language=JAPANESE,
        ),
        FineWebQualityFilter(
            lines,
            line_punct_thr=0.167,
            short_line_thr=999,  # No text exceeds this threshold, so the rule is disabled.
            char_duplicates_ratio=0.1,
            new_line_ratio=0.162,
            language=JAPANESE,
        ),
        GopherQualityFilter(
            min_avg_word_length=1,
            max_avg_word_length=5,
            max_non_alpha_words_ratio=0.759,
            min_stop_words=2,
            stop_words=STOP_WORDS,
            exclusion_writer=words,
            language=JAPANESE,
        ),
    ]


def clean(files: list[Path], output: Path, workers: int) -> None:
    """Filter the files of one folder, and remove near-duplicates in four stages of MinHash."""
    work, filtered = output / "work", str(output / "work/filtered")
    signatures, buckets, duplicates = (str(work / n) for n in ("signatures", "buckets", "removed"))
    (work / "files").write_text("".join(f"{f.name}\n" for f in files), "utf-8")
    reader = JsonlReader(str(files[0].parent), paths_file=str(work / "files"))

    def run(name: str, tasks: int, *steps: PipelineStep) -> None:
        # datatrove records finished tasks in the logs, and does not repeat them.
        logs = str(work / "logs" / name)
        LocalPipelineExecutor(list(steps), tasks, min(workers, tasks), logs).run()

    run("filter", len(files), reader, *filters(output / "removed"), JsonlWriter(filtered))
    if not any(Path(filtered).glob("*.jsonl.gz")):
        raise SystemExit(f"clean: no document is left; {output / 'removed'} says why")
    sign = MinhashDedupSignature(signatures, MINHASH, JAPANESE)
    run("signatures", len(files), JsonlReader(filtered), sign)
    run("buckets", MINHASH.num_buckets, MinhashDedupBuckets(signatures, buckets, config=MINHASH))
    run("clusters", 1, MinhashDedupCluster(buckets, duplicates, MINHASH))
    drop = MinhashDedupFilter(duplicates, JsonlWriter(str(output / "removed/duplicates")))
    run("text", len(files), JsonlReader(filtered), drop, JsonlWriter(str(output / "text")))


def lines_of(path: Path) -> int:
    """Count the documents in a file that datatrove wrote."""
    with gzip.open(path, "rb") as file:
        return sum(1 for _ in file)


def main() -> None:
    """Clean the input, and print how many documents each rule removed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True, help="folder of JSON lines, or a file")
    parser.add_argument("--output", type=Path, required=True, help="folder that is written")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()
    files = sorted(args.input.glob("*.jsonl*")) if args.input.is_dir() else [args.input]
    if not files or not files[0].is_file():
        sys.exit(f"clean: {args.input}: no .jsonl, .jsonl.gz or .jsonl.zst there")
    begun = args.output / "work/input.json"
    given = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime] for f in files]
    if begun.exists() and json.loads(begun.read_text("utf-8")) != given:
        sys.exit(f"clean: {args.output} was begun with other files: choose another --output")
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.write_text(json.dumps(given), "utf-8")
    clean(files, args.output, args.workers)
    for name in ("text", *(f"removed/{n}" for n in REMOVED)):
        print(f"{name}: {sum(map(lines_of, (args.output / name).glob('*.jsonl.gz'))):,} documents")


if __name__ == "__main__":
    main()
