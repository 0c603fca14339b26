"""Train an encoder to compute the token vectors of search.py, from questions about passages.

    pip install "sentence-transformers[train]>=6" bm25s
    python docs/examples/embed.py hf --documents d.jsonl --questions q.jsonl --output embedder

A line of --documents contains `id` and `text`. A line of --questions contains `query`, the `id` of
the document, and `paragraph_start` and `paragraph_end`, the range of characters of the right
paragraph. The questions of a batch are about different documents. Each of these questions is the
one that BM25 answers worst among eight drawn questions. Its training example contains the right
paragraph, and the paragraph of another document that BM25 ranks first. Each step draws the number
of tokens per vector. The fraction --held_out of the documents, chosen by checksum, is not used for
training. Rerun the command after an interruption to continue.
"""

import argparse
import json
import random
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import search
import torch
from datasets import Dataset
from finetune import BadInput, number, of_each
from sentence_transformers import MultiVectorEncoder, MultiVectorEncoderTrainer
from sentence_transformers import MultiVectorEncoderTrainingArguments as Arguments
from sentence_transformers.multi_vector_encoder.losses import (
    CachedMultiVectorMultipleNegativesRankingLoss as CachedLoss,
)
from transformers import TrainerCallback

CARD = """---
library_name: sentence-transformers
tags: [sentence-transformers, multi-vector, late-interaction]
---
`MultiVectorEncoder("FOLDER")` compares queries (`encode_query`) and passages of up to {} tokens
(`encode_document`) by MaxSim (`similarity`). Longer texts are cut off, so cut them into passages.
"""
FACTORS = (1, 8, 16, 16)  # numbers of tokens per vector, of which each training step draws one
DRAWN = 8  # questions that are drawn for each one that is used
SCALE = 3  # factor of MaxSim in the loss
SAVED_EVERY = 6  # training steps between saves
CHARACTERS = range(120, 241)  # lengths of paragraphs to train on. Longer ones only take more time.


def batches(args: argparse.Namespace) -> search.Rows:
    """Return the rows of the training data. Consecutive rows form a batch."""
    texts = {row["id"]: row["text"] for row in search.read(args.documents, "id", "text")}
    rows = search.read(args.questions, "query", "id")
    names, queries = ("paragraph_start", "paragraph_end"), defaultdict(list)
    places = of_each(args.questions, rows, lambda r: [texts[r["id"]], *(int(r[n]) for n in names)])
    for row, (text, start, end) in zip(rows, places, strict=True):
        if end - start in CHARACTERS and not search.is_within(text, args.held_out):
            queries[row["id"], text[start:end]].append(row["query"])
    pairs = [*queries]
    documents = np.array([name for name, _ in pairs])
    if len({*documents}) < args.batch_size:
        raise BadInput(f"{args.questions} asks for fewer than --batch_size documents to train on")
    index, draw = search.index(passage for _, passage in pairs), random.Random(0)

    def ask(right: int) -> tuple[float, str, int, int]:
        """Draw a question about the passage `right`, and find the best wrong passage by BM25.

        Returns:
            Ratio of the BM25 scores of the right and the wrong passage, the question, and the
            numbers of both passages.
        """
        query = draw.choice(queries[pairs[right]])
        scores = index.get_scores(search.grams(query))
        wrong = int(np.where(documents == documents[right], -1, scores).argmax())
        return scores[right] / max(scores[wrong], 1e-9), query, right, wrong

    made: search.Rows = []
    for _ in range(args.steps):
        used: list[str] = []
        while len(used) < args.batch_size:
            free = np.flatnonzero(~np.isin(documents, used)).tolist()
            _, query, right, wrong = min(ask(draw.choice(free)) for _ in range(DRAWN))
            used.append(documents[right])
            made.append({"query": query, "passage": pairs[right][1], "wrong": pairs[wrong][1]})
    return made


def in_order(dataset: Dataset, batch_size: int, **others: Any) -> torch.utils.data.BatchSampler:
    """Return a sampler that keeps the order of the rows."""
    rows = torch.utils.data.SequentialSampler(dataset)
    return torch.utils.data.BatchSampler(rows, batch_size, drop_last=True)


class ChangePooling(TrainerCallback):
    """Callback that draws the number of tokens per vector for each step, seeded by the step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the tokens per vector of this step."""
        others["model"][-1].pool_factor = random.Random(state.global_step).choice(FACTORS)


def train(model: MultiVectorEncoder, rows: search.Rows, args: argparse.Namespace) -> None:
    """Train the model from its newest complete checkpoint, and save it."""
    for path in (folder := args.output / "training").glob("checkpoint-*"):
        try:
            json.loads((path / "trainer_state.json").read_text("utf-8"))  # the file saved last
        except (OSError, ValueError):
            shutil.rmtree(path)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # On a CPU, attention without dropout is several times faster.
    settings = Arguments(
        output_dir=str(folder),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        warmup_steps=0.1,
        bf16=torch.cuda.is_available(),
        batch_sampler=in_order,
        prompts={c: model.prompts[c if c == "query" else "document"] for c in rows[0]},
        save_steps=SAVED_EVERY,
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
    )
    trainer = MultiVectorEncoderTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        loss=CachedLoss(model, scale=SCALE, mini_batch_size=4),
        callbacks=[ChangePooling()],
    )
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    model[-1].pool_factor = args.tokens_per_vector
    model.save_pretrained(str(args.output), create_model_card=False)
    # transformers 4 does not know the tokenizer class that transformers 5 writes to this file.
    path = args.output / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2), "utf-8")
    (args.output / "README.md").write_text(CARD.format(model[0].document_length), "utf-8")
    shutil.rmtree(folder)


def main() -> None:
    """Read the flags, and train the model."""
    parser = search.flags(__doc__)
    parser.add_argument("--questions", type=Path, required=True, help="see above")
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    parser.add_argument("--held_out", type=number(float, 0, 1), default=0.2, help="of documents")
    parser.add_argument("--steps", type=number(int, 1), default=36)
    parser.add_argument("--batch_size", type=number(int, 2), default=24, help="paragraphs")
    parser.add_argument("--learning_rate", type=number(float, 0), default=2e-5)
    parser.add_argument("--tokens_per_vector", type=number(float, 1), default=8)
    args = parser.parse_args()
    if (args.output / "modules.json").exists() and not (args.output / "training").exists():
        raise BadInput(f"{args.output} contains a model, so name another --output")
    train(search.load(args.model, args), batches(args), args)


if __name__ == "__main__":
    main()
