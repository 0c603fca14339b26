"""Train an embedder from an exported folder, and compare it with BM25 on long documents.

    pip install "sentence-transformers[train]>=6" bm25s
    python docs/examples/embed.py guide/hf --corpus wiki.jsonl.gz --output embedder
    python docs/examples/embed.py guide/hf --pairs pairs.jsonl --output embedder
    python docs/examples/embed.py guide/hf --articles a.jsonl --questions q.jsonl --output embedder
    python docs/examples/embed.py embedder --corpus wiki.jsonl.gz --epochs 0

Any folder that sentence-transformers loads is trained by its trainer (cached contrastive loss) on
whole documents, up to --max_tokens or the model's own positions. An interrupted training continues
by the same command; `SentenceTransformer("embedder")` loads the result. A model that was trained
with prompts keeps them; others, such as e5, need --query_prompt "query: " and --text_prompt
"passage: ". They are saved: `encode(texts, prompt_name="query")`, or "document".

--corpus (.jsonl or .jsonl.gz, Wiki40b's markers in `text`) asks for articles by title and heading
of a section; both are taken out of the article. --pairs has a `query` and its `text` in each line;
--articles `id` and `text`, and --questions `query`, the `id` of the article that answers it, and
`paragraph_start`, the character where the paragraph begins that does. An article is encoded once
for --together of its questions. With --window only that many characters around their paragraphs are
read: a cheap start. `search.py` evaluates questions on articles.
A share of the documents (--held_out, by checksum: always the same ones) is not trained on. The
table ranks them for their own queries: recall and nDCG@10 by length of the document, for the
embedder, for its view of the first 512 tokens, and for BM25 of characters and their pairs.
"""

import argparse
import gzip
import itertools
import json
import math
import random
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from transformers.trainer_utils import get_last_checkpoint

BOUNDS = (512, 2048, 8192)  # tokens; rows of the table
SHORT = 512  # tokens that encoders before ModernBERT see
Pair = tuple[str, str]  # a query, and the document that answers it
PART = re.compile(r"_START_(ARTICLE|SECTION|PARAGRAPH)_\n(.*?)(?=\n_START_|\Z)", re.DOTALL)


def lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the file and line of each JSON object, and the object."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            where = f"{path} line {number}"
            try:
                yield where, dict(json.loads(line))
            except (ValueError, TypeError):
                sys.exit(f"embed: {where}: not a JSON object")


def from_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file of `query` and `text`."""
    for where, row in lines(path):
        query, text = row.get("query"), row.get("text")
        if not all(isinstance(part, str) and part.strip() for part in (query, text)):
            sys.exit(f"embed: {where}: needs a query and a text, two strings that are not empty")
        yield query, text


def from_corpus(path: Path, queries: int) -> Iterator[Pair]:
    """Yield up to `queries` pairs of each article, of headings evenly spread over it."""
    for where, row in lines(path):
        parts = PART.findall(str(row.get("text")))
        if not parts or parts[0][0] != "ARTICLE":
            sys.exit(f"embed: {where}: no article with Wiki40b's markers: make --pairs of it")
        title = parts[0][1].strip()
        names = [title, *(f"{title} {name.strip()}" for kind, name in parts if kind == "SECTION")]
        text = "\n".join(t.replace("_NEWLINE_", "\n") for kind, t in parts if kind == "PARAGRAPH")
        if title and text.strip():
            count = min(queries, len(names))
            # From the last one on: paragraphs beyond a short view are asked for, too.
            yield from ((names[-1 - i * len(names) // count], text) for i in range(count))


def from_questions(
    articles: Path, questions: Path, held_out: float, together: int, window: int
) -> Iterator[tuple[bool, Pair]]:
    """Yield pairs in the order of the articles and their paragraphs, and if each is held out.

    Args:
        articles: file of `id` and `text`.
        questions: file of `query`, `id` of the article, and `paragraph_start`, a character in it.
        held_out: share of the articles.
        together: questions in turn that share a window.
        window: characters around the paragraphs that are asked about; 0: the whole article.
    """
    texts = {row["id"]: str(row["text"]) for _, row in lines(articles)}
    rows = [row for _, row in lines(questions)]
    if missing := next((row for row in rows if row.get("id") not in texts), None):
        sys.exit(f"embed: {questions}: no article has the id {missing.get('id')!r}")
    rows.sort(key=lambda row: (row["id"], row.get("paragraph_start", 0)))
    draw = random.Random(0)
    for name, group in itertools.groupby(rows, key=lambda row: row["id"]):
        article, asked = texts[name], [*group]
        for first in range(0, len(asked), together):
            several = asked[first : first + together]
            begin, end = (several[i].get("paragraph_start", 0) for i in (0, -1))
            # Not always in the same place, which the model would learn.
            lead = draw.randint(0, max(0, window - (end - begin) - window // 4))
            start = max(0, begin - lead) if window else 0
            text = article[start : start + window] if window else article
            for row in several:
                yield is_held_out(article, held_out), (row["query"], text)


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of a flag that takes whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: needs a whole number from {least} on")
        return int(text)

    return read


def is_held_out(text: str, share: float) -> bool:
    """Tell a document's side by its checksum."""
    return zlib.crc32(text.encode()) < share * 2**32


def set_prompts(model: SentenceTransformer, query: str | None, text: str | None) -> None:
    """Set the prompts in front of queries and documents; None keeps the model's own, if any."""
    own = model.prompts
    document = next((own[name] for name in ("document", "passage") if own.get(name)), "")
    model.prompts = {
        **own,
        "query": own.get("query", "") if query is None else query,
        "document": document if text is None else text,
    }


def most_tokens(model: SentenceTransformer, asked: int) -> int:
    """Return the smaller of `asked` and the model's positions."""
    config = model[0].auto_model.config
    positions = config.max_position_embeddings
    if config.model_type in ("roberta", "xlm-roberta"):  # counted from the padding id + 1 on
        positions -= config.pad_token_id + 1
    if positions < asked:
        print(f"documents are cut at {positions:,} tokens, the model's positions", file=sys.stderr)
    return int(min(positions, asked))


class SeveralQueries(CachedMultipleNegativesRankingLoss):
    """Cached contrastive loss of texts, the first column, each with several queries."""

    def calculate_loss(
        self, reps: list[list[torch.Tensor]], labels: Any = None, *, with_backward: bool = False
    ) -> torch.Tensor:
        """Return the queries' mean cross-entropy: which of the batch's texts answers them?"""
        texts, *queries = (torch.cat(column).float() for column in reps)
        scores = self.scale * self.similarity_fct(torch.cat(queries), texts)
        right = torch.arange(len(texts)).repeat(len(queries)).to(scores.device)
        loss = torch.nn.functional.cross_entropy(scores, right)
        if with_backward:
            loss.backward()
        return loss.detach() if with_backward else loss


def rows_of(pairs: Sequence[Pair], together: int, seed: int = 0) -> dict[str, list[str]]:
    """Return the columns of the training data: a text, and `together` of its queries."""
    of_text: dict[str, list[str]] = {}
    for query, text in pairs:
        of_text.setdefault(text, []).append(query)
    draw = random.Random(seed)
    rows = []
    for text, queries in of_text.items():
        draw.shuffle(queries)
        for start in range(0, len(queries), together):
            several = itertools.cycle(queries[start : start + together])
            rows.append((text, *itertools.islice(several, together)))
    names = ["text", *(f"query_{i}" for i in range(together))]
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def attend_within(model: SentenceTransformer, size: int) -> None:
    """Let the encoder attend within windows of `size` tokens, with the positions of the first.

    A text then costs as much per token as one of `size` tokens, and may be of any length. Its
    vector is the mean over all tokens, as before.
    """
    encoder = model[0].auto_model
    forward, pad = encoder.forward, torch.nn.functional.pad

    def by_windows(input_ids: Any, attention_mask: Any, **others: Any) -> Any:
        rows, length = input_ids.shape
        size_here = min(size, length)
        ids, mask = (
            pad(each, (0, -length % size_here)).view(-1, size_here)
            for each in (input_ids, attention_mask)
        )
        others = {name: value for name, value in others.items() if name != "token_type_ids"}
        output = forward(input_ids=ids, attention_mask=mask, **others)
        states = output.last_hidden_state
        output.last_hidden_state = states.view(rows, -1, states.shape[-1])[:, :length]
        return output

    encoder.forward = by_windows


def train(model: SentenceTransformer, pairs: Sequence[Pair], args: argparse.Namespace) -> None:
    """Train the model and save it in --output.

    With --source_share the mean of its weights before and after is saved: what it knew before, such
    as similarity of sentences, is then nearly kept (WiSE-FT, https://arxiv.org/abs/2109.01903).
    """
    output = args.output / "training"
    source = [parameter.detach().clone() for parameter in model.parameters()]
    columns = rows_of(pairs, args.together)
    prompts = dict.fromkeys(columns, model.prompts["query"])
    settings = Arguments(
        output_dir=str(output),
        num_train_epochs=args.epochs,
        max_steps=args.steps or -1,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        warmup_steps=args.warmup,
        bf16=args.bf16,
        use_cpu=not torch.cuda.is_available(),
        batch_sampler="no_duplicates",  # a document is no wrong answer to its own query
        prompts=prompts | {"text": model.prompts["document"]},
        save_steps=args.save_steps,
        save_total_limit=1,
        logging_steps=1 if args.steps else 10,
        report_to="none",
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # attention without dropout is several times faster on a CPU
    loss = SeveralQueries(model, scale=args.scale, mini_batch_size=args.mini_batch_size)
    trainer = SentenceTransformerTrainer(
        model=model, args=settings, train_dataset=Dataset.from_dict(columns), loss=loss
    )
    begun = get_last_checkpoint(str(output)) if output.exists() else None
    trainer.train(resume_from_checkpoint=begun)
    for parameter, before in zip(model.parameters(), source, strict=True):
        parameter.data.lerp_(before.to(parameter.device), args.source_share)
    model.save_pretrained(str(args.output))


def cosines(model: Any, queries: list[str], texts: list[str], max_tokens: int) -> np.ndarray:
    """Return cosines [queries, texts]; of a text the first `max_tokens` tokens are read."""
    model.max_seq_length = max_tokens
    one, other = (
        model.encode(
            each, prompt_name=name, batch_size=4, normalize_embeddings=True, show_progress_bar=True
        )
        for name, each in (("query", queries), ("document", texts))
    )
    return np.asarray(one @ other.T)


def bm25(queries: list[str], texts: list[str]) -> np.ndarray:
    """Return BM25's scores [queries, texts], of characters and their pairs."""

    def grams(text: str) -> list[str]:
        plain = unicodedata.normalize("NFKC", text).lower()
        return [*plain, *map("".join, itertools.pairwise(plain))]

    index = bm25s.BM25()
    index.index([grams(text) for text in texts], show_progress=False)
    return np.stack([index.get_scores(grams(query)) for query in queries])


def measures(scores: np.ndarray, right: np.ndarray) -> str:
    """Return the columns of a row of the table, of scores [queries, texts].

    A query's rank is that of its one right document, behind those that it ties with.
    """
    ranks = (scores >= np.take_along_axis(scores, right[:, None], 1)).sum(1)
    gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
    values = (np.mean(ranks <= 1), np.mean(ranks <= 10), gains.mean())
    return " | ".join(f"{value:.3f}" for value in values)


def evaluate(model: SentenceTransformer, pairs: Sequence[Pair], max_tokens: int) -> None:
    """Print the table."""
    queries, texts = [query for query, _ in pairs], list(dict.fromkeys(text for _, text in pairs))
    place = {text: i for i, text in enumerate(texts)}
    right = np.array([place[text] for _, text in pairs])
    length = np.array([len(ids) for ids in model.tokenizer(texts, verbose=False)["input_ids"]])
    methods = {
        "embedder": cosines(model, queries, texts, max_tokens),
        f"its first {SHORT} tokens": cosines(model, queries, texts, min(SHORT, max_tokens)),
        "BM25": bm25(queries, texts),
    }
    print(f"{len(texts):,} held-out documents, {len(queries):,} queries\n")
    print("| tokens | queries | | recall@1 | recall@10 | nDCG@10 |\n|---|---|---|---|---|---|")
    for low, high in [*itertools.pairwise((0, *BOUNDS, math.inf)), (0, math.inf)]:
        inside = (length[right] > low) & (length[right] <= high)
        name = f"{low + 1:,} to {high:,}" if high < math.inf else f"over {low:,}" if low else "all"
        for method, scores in methods.items() if inside.any() else ():
            columns = measures(scores[inside], right[inside])
            print(f"| {name} | {inside.sum():,} | {method} | {columns} |")


def main() -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of export, or an embedder made before")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path, help="articles with Wiki40b's markers")
    source.add_argument("--pairs", type=Path, help="a query and a text in each line")
    source.add_argument("--articles", type=Path, help="id and text; with --questions")
    parser.add_argument("--questions", type=Path, help="query, id and paragraph_start")
    parser.add_argument(
        "--window", type=at_least(0), default=0, help="characters of an article; 0: all"
    )
    parser.add_argument("--output", type=Path, help="folder of the embedder")
    parser.add_argument("--held_out", type=float, default=0.2, help="share of the documents")
    parser.add_argument("--queries", type=at_least(1), default=2, help="of each article")
    parser.add_argument(
        "--together", type=at_least(1), default=1, help="queries per encoding of a text"
    )
    parser.add_argument(
        "--attention_window",
        type=at_least(0),
        default=0,
        help="tokens that attend to each other; 0: all",
    )
    parser.add_argument("--epochs", type=float, default=1, help="0 only evaluates")
    parser.add_argument("--steps", type=at_least(0), default=0, help="in place of --epochs")
    parser.add_argument(
        "--save_steps", type=at_least(1), default=50, help="steps between checkpoints"
    )
    parser.add_argument(
        "--batch_size", type=at_least(1), default=64, help="every other text is wrong"
    )
    parser.add_argument("--mini_batch_size", type=at_least(1), default=4, help="in memory at once")
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--warmup", type=float, default=0.1, help="share of the steps")
    parser.add_argument("--scale", type=float, default=20, help="of cosines in the loss")
    parser.add_argument(
        "--source_share", type=float, default=0, help="of the weights before, in those saved"
    )
    parser.add_argument("--bf16", action="store_true", help="bfloat16 products in training")
    parser.add_argument(
        "--max_tokens", type=at_least(1), default=8192, help="tokens of a document, at most"
    )
    own = "(default: the model's own)"
    parser.add_argument("--query_prompt", help=f'text before each query, such as "query: " {own}')
    parser.add_argument("--text_prompt", help=f'text before documents, such as "passage: " {own}')
    args = parser.parse_args()
    path = args.corpus or args.pairs or args.articles
    if bool(args.articles) != bool(args.questions):
        sys.exit("embed: --articles and --questions belong together")
    for each in filter(None, (path, args.questions)):
        if not each.is_file():
            sys.exit(f"embed: {each}: no such file")
    if not 0 <= args.source_share < 1:
        sys.exit(f"embed: --source_share {args.source_share}: needs a number from 0 to below 1")
    if args.epochs and args.output is None:
        sys.exit("embed: --output names the folder of the embedder")
    sides: tuple[list[Pair], list[Pair]] = ([], [])
    if args.articles:
        asked = from_questions(path, args.questions, args.held_out, args.together, args.window)
        for held, pair in asked:
            sides[held].append(pair)
    else:
        for pair in from_corpus(path, args.queries) if args.corpus else from_pairs(path):
            sides[is_held_out(pair[1], args.held_out)].append(pair)
    if not all(sides):
        sys.exit(f"embed: {path}: too few documents to hold some out")
    model = SentenceTransformer(args.model)
    if args.attention_window:
        attend_within(model, args.attention_window)
        model.max_seq_length = max_tokens = args.max_tokens
    else:
        model.max_seq_length = max_tokens = most_tokens(model, args.max_tokens)
    set_prompts(model, args.query_prompt, args.text_prompt)
    if args.epochs:
        train(model, sides[False], args)
    if not args.articles:
        evaluate(model, sides[True], max_tokens)


if __name__ == "__main__":
    main()
