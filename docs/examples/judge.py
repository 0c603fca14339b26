"""Measure how well search.py ranks the right document of each question in a file.

    pip install "sentence-transformers>=6" bm25s
    python docs/examples/judge.py e5 embedder --documents d.jsonl.gz --questions q.jsonl.gz

A line of --questions contains `query` and the `id` of the document that answers it. The table shows
the nDCG@10 of the questions about the fraction --judged of the documents, chosen by checksum. For
each question, all documents are ranked by their best passages. The 95 % intervals are from a
bootstrap over documents. The last columns are the vectors and kilobytes of a document, and the
processor time of a query in milliseconds.

--pairs is a folder with the files of JSTS and JSICK that benchmark.py reads. A second table shows
Spearman's correlation between the labels of sentence pairs and the cosines of the two sentences. Of
JSICK's labels, `entailment` counts as 1 and the other labels count as 0.
"""

import argparse
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark
import numpy as np
import torch
from finetune import BadInput, number, of_each
from search import (
    CANDIDATES,
    WEIGHT,
    Passages,
    Query,
    Rows,
    add,
    flags,
    grams,
    index,
    is_within,
    load,
    max_sim,
    read,
)
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling


def cosine(query: Query, passage: np.ndarray) -> float:
    """Return the cosine of a query's mean vector and a passage's mean vector."""
    one, other = query[0].mean(0), passage.mean(0, dtype=np.float32)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def gains(scores: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the nDCG@10 of each query, from scores [queries, documents].

    Documents with the same score as the right one are ranked before it.
    """
    ranks = (scores >= np.take_along_axis(scores, right[:, None], 1)).sum(1)
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)


def interval(differences: np.ndarray, right: np.ndarray) -> str:
    """Format the mean of `differences`, and its 95 % interval from a bootstrap over documents."""
    group = np.unique(right, return_inverse=True)[1]
    sums, counts = np.bincount(group, differences), np.bincount(group)
    shares = np.full(len(sums), 1 / len(sums))
    draws = np.random.default_rng(0).multinomial(len(sums), shares, 10_000)
    low, high = np.percentile(draws @ sums / (draws @ counts), (2.5, 97.5))
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def judge(
    passages: Passages, queries: list[str], right: np.ndarray
) -> dict[str, tuple[np.ndarray, str]]:
    """Return, for each method by name, the nDCG@10 [queries] and the costs as table cells."""
    begun = time.process_time()
    bm25 = np.stack([passages.index.get_scores(grams(query)) for query in queries])
    bm25_time, begun = time.process_time() - begun, time.process_time()
    asked = [*map(passages.encode_query, queries)]
    query_time = bm25_time + time.process_time() - begun
    best = np.argsort(-bm25, kind="stable")[:, :CANDIDATES]
    starts = np.searchsorted(passages.document, np.arange(passages.document[-1] + 1))
    by_document = np.maximum.reduceat(bm25, starts, axis=1)
    vectors = passages.encode(np.unique(best))

    def score(method: Callable[..., float], of: dict[int, np.ndarray]) -> np.ndarray:
        pairs = zip(asked, best, strict=True)
        return np.array([[method(query, of[i]) for i in some] for query, some in pairs])

    def judged(scores: np.ndarray) -> np.ndarray:
        # Documents without a candidate passage come last, in the order of their BM25 scores.
        ranked = by_document - 1e6
        places = np.arange(len(best))[:, None], passages.document[best]
        np.maximum.at(ranked, places, scores)
        return gains(ranked, right)

    def costs(vectors: float, seconds: float) -> str:
        kilobytes = vectors * asked[0][0].shape[1] * 2 / 1000
        return f"{vectors:.0f} | {kilobytes:.0f} | {1000 * seconds / len(queries):.0f} |"

    each = len(passages.texts) / len(starts)
    found = {"passages, BM25": (gains(by_document, right), costs(0, bm25_time))}
    found["cosine"] = judged(score(cosine, vectors)), costs(each, query_time)
    for factor in (1, 4, 8, 16):
        pool = HierarchicalTokenPooling(factor).pool_one
        pooled = {i: pool(torch.from_numpy(some)).numpy() for i, some in vectors.items()}
        begun = time.process_time()
        sims = score(max_sim, pooled)
        seconds = query_time + time.process_time() - begun
        cells = costs(each * float(np.mean([*map(len, pooled.values())])), seconds)
        found[f"MaxSim, {factor} tokens a vector"] = judged(sims), cells
        both = add(np.take_along_axis(bm25, best, 1), sims)
        found[f"BM25 + {WEIGHT:g} MaxSim, {factor} tokens a vector"] = judged(both), cells
    return found


def show(rows: Rows, args: argparse.Namespace) -> None:
    """Measure the models, and print the table."""
    places = {row["id"]: i for i, row in enumerate(rows) if is_within(row["text"], args.judged)}
    asked = [row for row in read(args.questions, "query", "id") if row["id"] in places]
    asked = sorted(asked, key=lambda row: zlib.crc32(row["query"].encode()))[: args.most]
    queries, right = [row["query"] for row in asked], np.array([places[r["id"]] for r in asked])
    first: dict[str, Any] = {}
    for folder in args.model:
        model = load(folder, args)
        model[-1].pool_factor = 1
        passages = Passages(model, rows, args.cache)
        if args.hard and not first:
            best = [passages.index.get_scores(grams(query)).argmax() for query in queries]
            kept = np.flatnonzero(passages.document[best] != right)
            queries, right = [queries[i] for i in kept], right[kept]
        if len({*right}) < 2:
            raise BadInput(f"{args.questions} asks for fewer than two of the judged documents")
        found = judge(passages, queries, right)
        if not first:
            whole = index(row["text"] for row in rows)
            scores = np.stack([whole.get_scores(grams(query)) for query in queries])
            found = {"documents, BM25": (gains(scores, right), "| | |"), **found}
            print(f"{len(rows)} documents, {len(queries)} questions on {len({*right})} of them\n")
            print("| | nDCG@10 | minus passages, BM25 | minus first model | vectors | kB | ms |")
            print("|---|---|---|---|---|---|---|")
        for name, (values, cells) in found.items():
            minus = interval(values - found["passages, BM25"][0], right)
            change = interval(values - first[name][0], right) if first else ""
            print(f"| {folder}: {name} | {values.mean():.3f} | {minus} | {change} | {cells}")
        first = first or found


def read_pairs(data: Path) -> dict[str, list[tuple[str, str, float]]]:
    """Return the pairs of sentences of each task, with their labels."""

    def pair(row: dict[str, Any]) -> tuple[str, str, float]:
        return row["sentence1"] + "", row["sentence2"] + "", to_number(row["label"])

    tasks = {"JSTS": "jsts-valid", "JSICK": "jsick-test"}
    return {task: of_each(*benchmark.read(data, name), pair) for task, name in tasks.items()}


def show_pairs(tasks: dict[str, list[tuple[str, str, float]]], args: argparse.Namespace) -> None:
    """Print Spearman's correlation between human labels and the cosines of sentence pairs."""
    print(f"\n| | {' | '.join(tasks)} |\n|---|---|---|")
    for folder in args.model:
        model, cells = load(folder, args), [folder]
        model[-1].pool_factor = 1
        for pairs in tasks.values():
            *sides, labels = map(list, zip(*pairs, strict=True))
            both = [[each.mean(0) for each in model.encode_query(side)] for side in sides]
            units = [torch.nn.functional.normalize(torch.stack(side)) for side in both]
            found = (units[0] * units[1]).sum(1).cpu().numpy()
            cells.append(f"{benchmark.correlate_ranks(found, np.array(labels)):.3f}")
        print(f"| {' | '.join(cells)} |")


def to_number(label: str | float) -> float:
    """Convert a label to a number. The class `entailment` becomes 1, and other classes become 0."""
    return float(label == "entailment") if isinstance(label, str) else label


def main() -> None:
    """Read the flags and the documents, and measure the models."""
    parser = flags(__doc__, "+")
    parser.add_argument("--questions", type=Path, required=True, help="`query` and `id`")
    parser.add_argument("--judged", type=number(float, 0, 1), default=0.15, help="of documents")
    parser.add_argument("--most", type=number(int, 2), default=1200, help="questions to judge by")
    parser.add_argument("--hard", action="store_true", help="those that BM25 alone gets wrong")
    parser.add_argument("--pairs", type=Path, help="folder of JSTS and JSICK")
    args = parser.parse_args()
    # Read the pairs before `show`, which takes long, so that errors in the files are found early.
    tasks = read_pairs(args.pairs) if args.pairs else {}
    show(read(args.documents, "id", "text"), args)
    if tasks:
        show_pairs(tasks, args)


if __name__ == "__main__":
    main()
