"""Judge an embedder by MTEB: on articles and questions of your own, or on JMTEB.

    pip install "mteb>=2.26" sentence-transformers
    python docs/examples/mteb_local.py embedder --articles a.jsonl.gz --questions q.jsonl.gz
    python docs/examples/mteb_local.py embedder --benchmark "JMTEB(v2)"

--articles has `id` and `text` in each line, --questions `query` and the `id` of the article that
answers it; only the share --judged of the articles, by checksum, is ranked, as by `search.py`. A
benchmark is downloaded from the Hub. Prompts are the model's own ("query", "document"). Prints
MTEB's table of scores, and writes its results as JSON to --output.
"""

import argparse
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from sentence_transformers import SentenceTransformer


def lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a .jsonl or .jsonl.gz file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def local_task(articles: Path, questions: Path, judged: float) -> AbsTaskRetrieval:
    """Return a retrieval task of local files, for `mteb.evaluate`."""
    inside = [r for r in lines(articles) if zlib.crc32(r["text"].encode()) < judged * 2**32]
    known = {row["id"] for row in inside}
    asked = [row for row in lines(questions) if row["id"] in known]
    if not asked:
        raise SystemExit(f"mteb_local: {questions}: no questions on the judged articles")
    queries = [{"id": f"q{i}", "text": row["query"]} for i, row in enumerate(asked)]
    split = {
        "corpus": Dataset.from_list([{"id": r["id"], "text": r["text"]} for r in inside]),
        "queries": Dataset.from_list(queries),
        "relevant_docs": {f"q{i}": {row["id"]: 1} for i, row in enumerate(asked)},
        "top_ranked": None,
    }

    class LocalRetrieval(AbsTaskRetrieval):
        """Questions on whole articles."""

        metadata = mteb.TaskMetadata(
            name="LocalRetrieval",
            description="Questions on whole articles.",
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            dataset={"path": "local/articles", "revision": "1"},
            eval_splits=["test"],
            eval_langs=["jpn-Jpan"],
            main_score="ndcg_at_10",
        )

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            """Take the files that were read."""
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return LocalRetrieval()


def main() -> None:
    """Evaluate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of an embedder")
    parser.add_argument("--articles", type=Path)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--judged", type=float, default=0.15, help="share of the articles")
    parser.add_argument("--benchmark", help='of MTEB, such as "JMTEB(v2)"; needs the Hub')
    parser.add_argument("--output", type=Path, default=Path("mteb-results"))
    args = parser.parse_args()
    if args.benchmark:
        tasks: Any = mteb.get_benchmark(args.benchmark)
    elif args.articles and args.questions:
        tasks = [local_task(args.articles, args.questions, args.judged)]
    else:
        parser.error("give --articles and --questions, or --benchmark")
    cache = mteb.ResultCache(args.output)
    result = mteb.evaluate(SentenceTransformer(args.model), tasks, cache=cache)
    print(result.to_dataframe().to_string(index=False))
    for task in result.task_results:
        scores = task.scores["test"][0]
        print(
            ", ".join(
                f"{key} {scores[key]:.3f}"
                for key in ("ndcg_at_10", "recall_at_10")
                if key in scores
            )
        )


if __name__ == "__main__":
    main()
