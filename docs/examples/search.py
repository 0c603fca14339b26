r"""Judge search over whole documents: an embedder, its chunks, BM25, and both together.

    pip install "sentence-transformers>=6" bm25s
    python docs/examples/search.py embedder --articles a.jsonl.gz --questions q.jsonl.gz \
        --cache vectors --query_prompt "query: " --text_prompt "passage: "

--articles has `id` and `text` in each line, --questions `query`, the `id` of the article that
answers it, and `paragraph_start`, the character where the paragraph begins that does. Articles are
parted by their checksums, always in the same way: --judged is ranked for its questions, --tuned
only chooses the weight of the embedder's cosines next to BM25's scores, each standardized by query.
Train on neither (`embed.py --held_out` takes the sum of the two).

The table has nDCG@10 by the token where the paragraph begins; vectors and kilobytes (float32) per
article; and milliseconds per query on this machine. One vector per article: `first N tokens`,
`whole, by windows` (--attention_window) and `mean of chunks`; `best chunk` ranks an article by its
best part of --chunk_tokens, by cosines, by BM25, or by the sum of both for each part. Vectors are
kept in --cache as they are computed: an interrupted run continues.
"""

import argparse
import hashlib
import itertools
import math
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import embed
import numpy as np
from sentence_transformers import SentenceTransformer

BOUNDS = (0, 512, 2048, 4096, math.inf)  # tokens; columns of the table
WEIGHTS = np.concatenate([np.arange(0, 1, 0.05), np.arange(1, 4.1, 0.25)])
SAVED_EVERY = 32  # articles
ANY_LENGTH = 32768  # tokens


@dataclass
class Part:
    """Articles and their questions.

    Attributes:
        texts: the articles.
        queries: the questions.
        right: int [queries], the article that answers.
        starts: int [queries], the token of the article where the asked paragraph begins.
        chunks: parts of each article, in order.
    """

    texts: list[str]
    queries: list[str]
    right: np.ndarray
    starts: np.ndarray
    chunks: list[list[str]]


def read(
    args: argparse.Namespace, low: float, high: float, most: int, model: SentenceTransformer
) -> Part:
    """Read the articles whose checksum lies in [low, high), and up to `most` of their questions."""
    texts: list[str] = []
    place: dict[str, int] = {}
    for _, row in embed.lines(args.articles):
        if low <= zlib.crc32(row["text"].encode()) / 2**32 < high:
            place[row["id"]] = len(texts)
            texts.append(row["text"])
    rows = [row for _, row in embed.lines(args.questions) if row["id"] in place]
    rows = sorted(rows, key=lambda row: zlib.crc32(row["query"].encode()))[:most]
    if len(texts) < 2 or not rows:
        sys.exit(f"search: {args.articles}: too few articles with questions to judge by")
    spans = model.tokenizer(
        texts, return_offsets_mapping=True, add_special_tokens=False, verbose=False
    )["offset_mapping"]
    first = [np.array([start for start, _ in tokens]) for tokens in spans]
    right = np.array([place[row["id"]] for row in rows])
    starts = [
        np.searchsorted(first[i], row["paragraph_start"])
        for i, row in zip(right, rows, strict=True)
    ]
    chunks = [
        [
            text[a:b]
            for a, b in itertools.pairwise(
                [*begins[:: args.chunk_tokens or len(begins)], len(text)]
            )
        ]
        for text, begins in zip(texts, first, strict=True)
    ]
    return Part(texts, [row["query"] for row in rows], right, np.array(starts), chunks)


def vectors(model: Any, texts: Sequence[str], name: str, length: int, cache: Path) -> np.ndarray:
    """Return unit vectors [texts, size], from the cache as far as they are there."""
    model.max_seq_length = length
    identity = hashlib.sha256(repr((model.prompts, name, length, texts)).encode())
    for parameter in model.parameters():
        identity.update(parameter.detach().numpy().tobytes())
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{identity.hexdigest()[:20]}.npy"
    done = [*np.load(path)] if path.exists() else []
    for start in range(len(done), len(texts), SAVED_EVERY):
        batch = [*texts[start : start + SAVED_EVERY]]
        done += [*model.encode(batch, prompt_name=name, batch_size=1, normalize_embeddings=True)]
        np.save(path.with_suffix(".part.npy"), np.stack(done))
        path.with_suffix(".part.npy").replace(path)
        print(f"{name}, {length:,} tokens: {len(done):,} of {len(texts):,}", file=sys.stderr)
    return np.stack(done)


def gains(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return each query's nDCG@10, of scores [queries, articles]."""
    ranks = (scores >= np.take_along_axis(scores, right[:, None], 1)).sum(1)
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)


def standard(scores: np.ndarray) -> np.ndarray:
    """Standardize each query's scores [queries, articles or chunks]."""
    return (scores - scores.mean(1, keepdims=True)) / (scores.std(1, keepdims=True) + 1e-9)


@dataclass
class Method:
    """Ranking method.

    Attributes:
        scores: [queries, articles], or [queries, chunks].
        vectors: per article; 0: an index of words.
        milliseconds: per query.
        begins: int [articles], the first chunk of each; None: the scores are of articles.
    """

    scores: np.ndarray
    vectors: float
    milliseconds: float
    begins: np.ndarray | None = None

    def of_articles(self) -> np.ndarray:
        """Return the scores [queries, articles]: an article's is that of its best chunk."""
        if self.begins is None:
            return self.scores
        return np.maximum.reduceat(self.scores, self.begins, axis=1)


def rank(model: SentenceTransformer, part: Part, args: argparse.Namespace) -> dict[str, Method]:
    """Rank the articles by each method."""

    def lexical(texts: list[str], begins: np.ndarray | None = None) -> Method:
        begun = time.perf_counter()
        scores = embed.bm25(part.queries, texts)
        return Method(scores, 0, 1000 * (time.perf_counter() - begun) / len(part.queries), begins)

    asked = vectors(model, part.queries, "query", 512, args.cache)
    begun, few = time.perf_counter(), part.queries[:50]
    model.encode(few, prompt_name="query", batch_size=1)
    query_ms = 1000 * (time.perf_counter() - begun) / len(few)
    methods = {}
    for length in args.max_tokens:
        whole = vectors(model, part.texts, "document", embed.most_tokens(model, length), args.cache)
        methods[f"first {length:,} tokens"] = Method(asked @ whole.T, 1, query_ms)
    if args.attention_window:
        embed.attend_within(model, args.attention_window)
        whole = vectors(model, part.texts, "document", ANY_LENGTH, args.cache / "windows")
        methods["whole, by windows"] = Method(asked @ whole.T, 1, query_ms)
        del model[0].auto_model.forward  # the class's own again
    if args.chunk_tokens:
        flat = [chunk for chunks in part.chunks for chunk in chunks]
        limit = min(512, args.chunk_tokens + 16)  # with the prompt and special tokens
        parts = vectors(model, flat, "document", limit, args.cache)
        begins = np.cumsum([0, *map(len, part.chunks)])[:-1]
        mean = np.add.reduceat(parts, begins, axis=0)
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        methods["mean of chunks"] = Method(asked @ mean.T, 1, query_ms)
        methods["best chunk"] = Method(
            asked @ parts.T, len(flat) / len(part.texts), query_ms, begins
        )
        methods["BM25, best chunk"] = lexical(flat, begins)
    return methods | {"BM25": lexical(part.texts)}


def fused(methods: dict[str, Method], tuned: dict[str, Method], right: np.ndarray) -> None:
    """Add a method for each embedding method: BM25's scores plus a weight times its cosines.

    Both are of articles, or both of chunks. The weight is the best one for the tuned part.
    """

    def with_bm25(of: dict[str, Method], name: str, weight: float) -> Method:
        one = of[name]
        other = of["BM25" if one.begins is None else "BM25, best chunk"]
        scores = standard(other.scores) + weight * standard(one.scores)
        return Method(scores, one.vectors, one.milliseconds + other.milliseconds, one.begins)

    for name in [name for name, method in methods.items() if method.vectors]:
        found = [
            gains(with_bm25(tuned, name, weight).of_articles(), right).mean() for weight in WEIGHTS
        ]
        weight = WEIGHTS[int(np.argmax(found))]
        methods[f"BM25 + {weight:.2f} x {name}"] = with_bm25(methods, name, weight)


def show(methods: dict[str, Method], part: Part, size: int) -> None:
    """Print the table."""
    inside = [(part.starts >= a) & (part.starts < b) for a, b in itertools.pairwise(BOUNDS)]
    names = [
        f"{a:,} to {b:,}" if b < math.inf else f"from {a:,}" for a, b in itertools.pairwise(BOUNDS)
    ]
    titles = ["", "all", *names, "vectors", "kB", "ms"]
    print(f"{len(part.texts):,} articles, {len(part.queries):,} questions\n")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    counts = " | ".join(f"{mask.sum():,}" for mask in inside)
    print(f"| questions | {len(part.queries):,} | {counts} | | | |")
    for name, method in methods.items():
        found = gains(method.of_articles(), part.right)
        cells = [f"{found.mean():.3f}"]
        cells += [f"{found[mask].mean():.3f}" if mask.any() else "" for mask in inside]
        kilobytes = method.vectors * size * 4 / 1000
        cells += [f"{method.vectors:.1f}", f"{kilobytes:.1f}", f"{method.milliseconds:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Judge, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of an embedder")
    parser.add_argument("--articles", type=Path, required=True, help="id and text")
    parser.add_argument("--questions", type=Path, required=True, help="query, id, paragraph_start")
    parser.add_argument("--cache", type=Path, default=Path("vectors"), help="folder of vectors")
    parser.add_argument("--judged", type=float, default=0.15, help="share of the articles")
    parser.add_argument("--tuned", type=float, default=0.05, help="share of the articles")
    parser.add_argument(
        "--most", type=embed.at_least(1), default=1200, help="questions of each part"
    )
    parser.add_argument("--max_tokens", type=embed.at_least(1), nargs="*", default=[512, 4096])
    parser.add_argument("--chunk_tokens", type=embed.at_least(0), default=500, help="0: no chunks")
    parser.add_argument(
        "--attention_window",
        type=embed.at_least(0),
        default=0,
        help="as in embed.py; 0: no such row",
    )
    parser.add_argument("--query_prompt", help="text before each query")
    parser.add_argument("--text_prompt", help="text before documents")
    args = parser.parse_args()
    for path in (args.articles, args.questions):
        if not path.is_file():
            sys.exit(f"search: {path}: no such file")
    model = SentenceTransformer(args.model)
    embed.set_prompts(model, args.query_prompt, args.text_prompt)
    low, high = args.judged, args.judged + args.tuned
    judged = read(args, 0, low, args.most, model)
    tuned = read(args, low, high, args.most, model)
    methods = rank(model, judged, args)
    fused(methods, rank(model, tuned, args), tuned.right)
    show(methods, judged, model.get_embedding_dimension() or 0)


if __name__ == "__main__":
    main()
