"""Fine-tunes an exported model with Hugging Face's Trainer: classification, or questions on text.

    python docs/examples/finetune.py classification --model guide/hf --data texts.jsonl --output out
    python docs/examples/finetune.py qa --model guide/hf --data questions.jsonl --output out

Data is a file of one JSON object per line. Classification: `text`, `label`. Questions: `question`,
`context`, `answer`, where the answer stands in the context as it is written; documents may be as
long as the model takes. Writes the fine-tuned model to --output and prints loss and accuracy on a
tenth of the data that it did not see. Needs torch, transformers and accelerate; no `datasets`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import transformers


def main() -> None:
    """Reads the command line, trains, prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("classification", "qa"))
    parser.add_argument("--model", required=True, help="folder that `bigbird-ja export` wrote")
    parser.add_argument("--data", required=True, help=".jsonl file")
    parser.add_argument("--output", required=True)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--learning_rate", type=float, default=3e-5)
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args()
    transformers.set_seed(0)
    rows = [json.loads(line) for line in Path(args.data).read_text("utf-8").splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    make = classification if args.task == "classification" else question_answering
    model, examples, accuracy = make(args.model, tokenizer, rows)
    held_out = max(1, len(examples) // 10)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=args.output,
            num_train_epochs=args.epochs,
            learning_rate=args.learning_rate,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            save_strategy="no",
            report_to=[],
            logging_steps=10,
        ),
        train_dataset=examples[held_out:],
        eval_dataset=examples[:held_out],
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
    results = trainer.evaluate()
    trainer.save_model(args.output)
    tokenizer.save_pretrained(args.output)
    print(json.dumps({key: results[key] for key in ("eval_loss", "eval_accuracy")}))


def classification(folder: str, tokenizer: Any, rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    """The model, examples with labels, and the share of labels that are right."""
    names = sorted({str(row["label"]) for row in rows})
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    examples = [
        {**tokenizer(row["text"], truncation=True), "labels": names.index(str(row["label"]))}
        for row in rows
    ]

    def accuracy(outputs: Any) -> dict[str, float]:
        return {"accuracy": float((outputs.predictions.argmax(-1) == outputs.label_ids).mean())}

    return model, examples, accuracy


def question_answering(folder: str, tokenizer: Any, rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    """The model, examples with the first and last token of the answer, and the share right."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
    examples = []
    for row in rows:
        begin = row["context"].index(row["answer"])
        end = begin + len(row["answer"]) - 1
        encoded = tokenizer(row["question"], row["context"], truncation="only_second")
        first, last = (encoded.char_to_token(at, sequence_index=1) for at in (begin, end))
        if first is None or last is None:  # the answer was cut off
            continue
        examples.append({**encoded, "start_positions": first, "end_positions": last})

    def accuracy(outputs: Any) -> dict[str, float]:
        guesses = [np.asarray(part).argmax(-1) for part in outputs.predictions[:2]]
        right = [guess == truth for guess, truth in zip(guesses, outputs.label_ids, strict=True)]
        return {"accuracy": float((right[0] & right[1]).mean())}

    return model, examples, accuracy


if __name__ == "__main__":
    main()
