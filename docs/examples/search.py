"""Search documents by BM25 and the token vectors of an encoder.

    pip install "sentence-transformers>=6" bm25s
    python docs/examples/search.py embedder --documents mine.jsonl --query "..."

The model is a folder that embed.py saved, or the folder of any encoder. A line of --documents
(.jsonl or .jsonl.gz) contains `id` and `text`. Documents are cut into passages at the ends of
sentences. BM25 over characters and pairs of characters chooses ten passages. MaxSim adds up each
query token's largest cosine to a vector of the passage, weighted by the token's inverse document
frequency. The scores of BM25 and MaxSim are standardized over the ten passages, and their weighted
sum ranks the passages. The folder --cache stores computed vectors, so an interrupted run continues.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import unicodedata
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s imports JAX, which would look for a TPU.
import bm25s
import numpy as np
from finetune import BadInput, number, of_each, read_rows
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.multi_vector_encoder import modules as late
from tqdm import tqdm

CANDIDATES = 10  # passages that BM25 chooses
WEIGHT = 0.5  # weight of MaxSim's score, which is added to BM25's score
SENTENCE = re.compile(r"[^。！？\n]{1,200}[。！？\n]*|[。！？\n]+")
Rows = list[dict[str, Any]]
Query = tuple[np.ndarray, np.ndarray]  # vectors [tokens, size], weights [tokens]


def read(path: Path, *fields: str) -> Rows:
    """Read the rows of a file, and check that the values of `fields` are strings."""
    of_each(path, rows := read_rows(path), lambda row: [row[field] + "" for field in fields])
    return rows


def is_within(text: str, share: float) -> bool:
    """Return whether a document is in the fraction `share` of documents, chosen by checksum."""
    return zlib.crc32(text.encode()) < share * 2**32


def load(folder: str, args: argparse.Namespace) -> MultiVectorEncoder:
    """Load a model that embed.py saved, or build one from an encoder, with a vector per token."""
    if not Path(folder, "config.json").is_file():
        raise BadInput(f"{folder} is not the folder of a model")
    path = Path(folder, "config_sentence_transformers.json")
    config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if config.get("model_type") == "MultiVectorEncoder":
        model = MultiVectorEncoder(folder)
    else:
        unit, pooling = Normalize("token_embeddings"), late.HierarchicalTokenPooling()
        modules = [Transformer(folder), late.MultiVectorMask(), unit, pooling]
        prompts = {"query": "", "document": "", **config.get("prompts", {})}
        model = MultiVectorEncoder(modules=modules, prompts=prompts)
    given = {"query": args.query_prompt, "document": args.text_prompt}
    model.prompts |= {name: prompt for name, prompt in given.items() if prompt is not None}
    around = len(model.tokenizer(model.prompts["document"])["input_ids"])
    most = model[0].max_seq_length - around
    if args.passage_tokens or not model[0].document_length:
        model[0].document_length = around + (args.passage_tokens or min(250, most))
    if model[0].document_length > around + most:
        raise BadInput(f"{folder} reads passages of up to {most} tokens")
    return model


def cut(model: MultiVectorEncoder, text: str) -> list[str]:
    """Cut a document into passages that end with a sentence."""
    most = model[0].document_length - len(model.tokenizer(model.prompts["document"])["input_ids"])
    passages, room = [], 0
    for sentence in SENTENCE.findall(text):
        count = len(model.tokenizer(sentence, add_special_tokens=False)["input_ids"])
        if count > room:
            passages.append("")
            room = most
        passages[-1] += sentence
        room -= count
    return passages


def grams(text: str) -> list[str]:
    """Return the characters and the pairs of adjacent characters of a text."""
    plain = unicodedata.normalize("NFKC", text).lower()
    return [*plain, *map("".join, itertools.pairwise(plain))]


def index(texts: Iterable[str]) -> bm25s.BM25:
    """Build a BM25 index of texts."""
    built = bm25s.BM25()
    built.index([grams(text) for text in texts], show_progress=False)
    return built


class Passages:
    """Passages of documents, with a BM25 index and a cache of their vectors."""

    def __init__(self, model: MultiVectorEncoder, rows: Rows, cache: Path) -> None:
        """Cut the documents and index their passages."""
        cuts = [cut(model, row["text"]) for row in rows]
        self.model, self.texts = model, [text for texts in cuts for text in texts]
        self.document = np.repeat(np.arange(len(cuts)), [len(texts) for texts in cuts])
        self.index = index(self.texts)
        encoded = model.tokenizer(self.texts, add_special_tokens=False)["input_ids"]
        counts = np.bincount([i for ids in encoded for i in {*ids}], minlength=len(model.tokenizer))
        self.idf = np.log(1 + (len(encoded) - counts + 0.5) / (counts + 0.5)).astype(np.float32)
        state = (model.prompts, model[0].document_length, model[-1].pool_factor)
        digest = hashlib.sha256(repr(state).encode())
        for name, parameter in model.named_parameters():
            # The pooler is unused. It is random if the folder does not contain its weights.
            if "pooler" not in name:
                digest.update(parameter.detach().cpu().numpy().tobytes())
        self.cache = cache / digest.hexdigest()[:16]
        self.cache.mkdir(parents=True, exist_ok=True)

    def encode_query(self, query: str) -> Query:
        """Return the vectors and weights of a query's tokens.

        Tokens of the prompt and special tokens have the weight 0.
        """
        tokenizer, prompt = self.model.tokenizer, self.model.prompts["query"]
        vectors = self.model.encode_query(query, convert_to_numpy=True)
        ids = np.array(tokenizer(prompt + query)["input_ids"][: len(vectors)])
        skipped = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        places = np.flatnonzero(~np.isin(ids, tokenizer.all_special_ids))[skipped:]
        weights = np.zeros(len(vectors), np.float32)
        weights[places] = self.idf[ids[places]]
        return vectors, weights

    def encode(self, numbers: Iterable[int]) -> dict[int, np.ndarray]:
        """Return the vectors [vectors, size] of each passage whose number is in `numbers`."""
        names = {i: hashlib.sha256(self.texts[i].encode()).hexdigest()[:24] for i in numbers}
        paths = {i: self.cache / f"{name}.npy" for i, name in names.items()}
        missing = [i for i, path in paths.items() if not path.exists()]
        for start in tqdm(range(0, len(missing), 8), "passages, by 8", disable=not missing):
            some = missing[start : start + 8]
            vectors = self.model.encode_document([self.texts[i] for i in some], batch_size=8)
            for i, each in zip(some, vectors, strict=True):
                np.save(self.cache / "new.npy", each.cpu().half().numpy())
                (self.cache / "new.npy").replace(paths[i])
        return {i: np.load(path) for i, path in paths.items()}


def max_sim(query: Query, passage: np.ndarray) -> float:
    """Return the weighted sum of each query token's largest cosine to a vector of the passage."""
    return float((passage.astype(np.float32) @ query[0].T).max(0) @ query[1])


def add(bm25: np.ndarray, sims: np.ndarray) -> np.ndarray:
    """Standardize the scores [..., passages] of BM25 and MaxSim, and return their weighted sum."""
    centered = [scores - scores.mean(-1, keepdims=True) for scores in (bm25, sims)]
    one, other = (scores / scores.std(-1, keepdims=True).clip(1e-9) for scores in centered)
    return np.asarray(one + WEIGHT * other)


def answer(passages: Passages, query: str, rows: Rows, top: int) -> None:
    """Print the `top` best passages for a query."""
    bm25 = passages.index.get_scores(grams(query))
    best = np.argsort(-bm25)[:CANDIDATES]
    asked, vectors = passages.encode_query(query), passages.encode(best)
    scores = add(bm25[best], np.array([max_sim(asked, vectors[i]) for i in best]))
    for place, i in enumerate(np.argsort(-scores)[:top], 1):
        print(f"{place}. {rows[passages.document[best[i]]]['id']} ({scores[i]:.2f})")
        print(f"   {' '.join(passages.texts[best[i]].split())}")


def flags(description: str | None, models: str | None = None) -> argparse.ArgumentParser:
    """Return an argument parser with the flags that search.py, judge.py and embed.py share."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("model", nargs=models, help="folder of a model")
    parser.add_argument("--documents", type=Path, required=True, help="`id` and `text`")
    own = "(default: the model's own"
    parser.add_argument("--passage_tokens", type=number(int, 16), help=f"{own}, or 250)")
    parser.add_argument("--query_prompt", help=f'text before queries, such as "query: " {own})')
    parser.add_argument("--text_prompt", help=f'text before passages, such as "passage: " {own})')
    parser.add_argument("--cache", type=Path, default="vectors", help="folder of vectors")
    return parser


def main() -> None:
    """Read the flags and the documents, and answer the queries."""
    parser = flags(__doc__)
    parser.add_argument("--query", nargs="+", required=True)
    parser.add_argument("--top", type=number(int, 1), default=3, help="passages to print")
    args = parser.parse_args()
    rows = read(args.documents, "id", "text")
    passages = Passages(load(args.model, args), rows, args.cache)
    for query in args.query:
        answer(passages, query, rows, args.top)


if __name__ == "__main__":
    main()
