"""Train token vectors for search.py, from the folder of an encoder, by questions on passages.

    pip install "sentence-transformers[train]>=6" bm25s
    python docs/examples/embed.py hf --documents d.jsonl --questions q.jsonl --output embedder

A line of --documents contains `id` and `text`, and one of --questions `query`, the `id` of the
document, and `paragraph_start` and `paragraph_end`, the characters of the paragraph that answers.
A batch consists of questions on different documents, each with those that BM25 finds similar: hard
wrong answers. The number of tokens per vector is random in each step. A share of the documents
(--held_out, by checksum) is not trained on. An interrupted command continues when it is repeated.
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
FACTORS = (1, 8, 16, 16)  # tokens per vector in training
GROUP = 12  # similar paragraphs in a batch
SCALE = 3  # of MaxSim in the loss
SAVED_EVERY = 6  # steps
Columns = dict[str, list[str]]
CHARACTERS = range(60, 281)  # of a paragraph; longer ones only cost more


def batches(args: argparse.Namespace) -> Columns:
    """Return the columns of the training data, one batch after the other."""
    texts = {row["id"]: row["text"] for row in search.read(args.documents, "id", "text")}
    rows = search.read(args.questions, "query", "id")
    names, queries = ("paragraph_start", "paragraph_end"), defaultdict(list)
    places = of_each(args.questions, rows, lambda r: [texts[r["id"]], *(int(r[n]) for n in names)])
    for row, (text, start, end) in zip(rows, places, strict=True):
        if end - start in CHARACTERS and not search.is_within(text, args.held_out):
            queries[row["id"], text[start:end]].append(row["query"])
    pairs = [*queries]
    if len({name for name, _ in pairs}) < args.batch_size:
        raise BadInput(f"{args.questions} asks for fewer than --batch_size documents to train on")
    index, draw = search.index(passage for _, passage in pairs), random.Random(0)
    columns: Columns = {"query": [], "passage": []}
    for _ in range(args.steps):
        used: set[str] = set()
        while len(used) < args.batch_size:
            order = [draw.randrange(len(pairs))]
            most = min(len(used) + GROUP, args.batch_size)
            for i in order:
                if pairs[i][0] not in used and len(used) < most:
                    used.add(pairs[i][0])
                    mixed = [*queries[pairs[i]]]
                    draw.shuffle(mixed)
                    columns["query"].append(mixed[0])
                    columns["passage"].append(pairs[i][1])
                    if len(order) == 1:  # the next ones are similar to the first
                        order += np.argsort(-index.get_scores(search.grams(mixed[0]))).tolist()
    return columns


def in_order(dataset: Dataset, batch_size: int, **others: Any) -> torch.utils.data.BatchSampler:
    """Return a sampler that keeps the order of the rows."""
    rows = torch.utils.data.SequentialSampler(dataset)
    return torch.utils.data.BatchSampler(rows, batch_size, drop_last=True)


class ChangePooling(TrainerCallback):
    """Draws the tokens per vector of each step, the same when a run continues."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Set the factor."""
        factor = random.Random(state.global_step).choice(FACTORS)
        others["model"][-1].pool_factor = factor


def train(model: MultiVectorEncoder, columns: Columns, args: argparse.Namespace) -> None:
    """Train the model and save it."""
    folder = args.output / "training"
    for path in folder.glob("checkpoint-*"):
        try:
            json.loads((path / "trainer_state.json").read_text("utf-8"))  # the last file of a save
        except (OSError, ValueError):
            shutil.rmtree(path)  # interrupted
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # attention without dropout is several times faster on a CPU
    settings = Arguments(
        output_dir=str(folder),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        warmup_steps=0.1,
        bf16=torch.cuda.is_available(),
        batch_sampler=in_order,
        prompts={"query": model.prompts["query"], "passage": model.prompts["document"]},
        save_steps=SAVED_EVERY,
        save_total_limit=1,
        logging_steps=1,
        report_to="none",
    )
    trainer = MultiVectorEncoderTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict(columns),
        loss=CachedLoss(model, scale=SCALE, mini_batch_size=4),
        callbacks=[ChangePooling()],
    )
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    model[-1].pool_factor = args.tokens_per_vector
    model.save_pretrained(str(args.output), create_model_card=False)
    path = args.output / "tokenizer_config.json"  # transformers 4 does not know the class of 5
    tokenizer = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2), "utf-8")
    (args.output / "README.md").write_text(CARD.format(model[0].document_length), "utf-8")
    shutil.rmtree(folder)


def main() -> None:
    """Train."""
    parser = search.flags(__doc__)
    parser.add_argument("--questions", type=Path, required=True, help="see above")
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    parser.add_argument("--held_out", type=number(float, 0, 1), default=0.2, help="of documents")
    parser.add_argument("--steps", type=number(int, 1), default=36)
    parser.add_argument("--batch_size", type=number(int, 2), default=24, help="paragraphs")
    parser.add_argument("--learning_rate", type=number(float, 0), default=5e-5)
    parser.add_argument("--tokens_per_vector", type=number(float, 1), default=8)
    args = parser.parse_args()
    if (args.output / "modules.json").exists() and not (args.output / "training").exists():
        raise BadInput(f"{args.output} contains a model, so name another --output")
    train(search.load(args.model, args), batches(args), args)


if __name__ == "__main__":
    main()
