r"""Fine-tune an encoder for texts of your own: classification, entities, or questions on a text.

    python docs/examples/finetune.py classification --model guide/hf --data texts.jsonl \
        --output out --trust_remote_code
    python docs/examples/finetune.py qa --model guide/hf --data questions.jsonl \
        --output out --trust_remote_code

The model is a folder that `bigbird-ja export` wrote, or any other Hugging Face encoder. --data is a
file with one JSON object per line (.jsonl or .jsonl.gz). The keys of an object depend on the task:

- `classification`: `text`, `label`.
- `ner` (entities): `text`, `entities`. Each entity is a list of its first character, the character
  after its last one, and its label. Entities do not overlap.
- `qa` (questions): `question`, `context`, `answer`. The context contains the answer verbatim, and
  may be as long as the model's maximum length.

Writes the fine-tuned model to --output. Prints loss and accuracy (F1 for entities) on a random
tenth of the data, which is not used for training.

This program needs only PyTorch and transformers, and uses a GPU if there is one. A BigBird export,
such as the guide's, contains the code of its attention. This code runs only with
--trust_remote_code: read it first. Exports of a ModernBERT, or of a BERT or RoBERTa with full
attention, contain no code and need no flag.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IGNORED = -100  # target without a loss, as in PyTorch's cross-entropy
POOL = 50  # batches whose examples are sorted by length together, which reduces padding


class BadInput(SystemExit):
    """Exception for an invalid input. It prints one line, and the exit status is 2."""

    def __init__(self, message: str) -> None:
        """Print the message on standard error."""
        super().__init__(message)
        self.code = 2
        print(f"{Path(sys.argv[0]).stem}: {message}", file=sys.stderr)


def number(kind: type, low: float, high: float = 1e9) -> Callable[[str], Any]:
    """Return a function for argparse's `type` that reads a number from `low` to `high`."""

    def read(text: str) -> Any:
        shape = r"\d+" if kind is int else r"\d*\.?\d+(e-?\d+)?"
        if re.fullmatch(shape, text) and low <= kind(text) <= high:
            return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")

    return read


@dataclass(frozen=True)
class Example:
    """Model input and target of one example.

    Attributes:
        encodings: token ids of the text, or of the text with each choice.
        target: the class, the score (float), the number of the right choice, the answer's first
            and last token, or a list with the class of each token (IGNORED for no class).
    """

    encodings: list[dict[str, list[int]]]
    target: Any

    @property
    def tokens(self) -> int:
        """Return the sum of the lengths of the encodings."""
        return sum(len(encoding["input_ids"]) for encoding in self.encodings)


@dataclass(frozen=True)
class Settings:
    """Settings of AdamW.

    The learning rate increases for 10 % of the steps, then decreases linearly to 0.

    Attributes:
        learning_rate: peak learning rate.
        seed: seed for the new head, dropout and the order of the examples.
    """

    epochs: int = 3
    learning_rate: float = 3e-5
    batch_size: int = 4
    weight_decay: float = 0.01
    seed: int = 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a .jsonl or .jsonl.gz file.

    Raises:
        BadInput: The file does not exist, or a line is not a JSON object.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    rows = []
    # Lines end only at \n, since a JSON string may contain other line breaks such as U+2028.
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise BadInput(f"{path}, line {number}: not a JSON object: {error}") from None
    return rows


def of_each(
    path: Path, rows: Sequence[dict[str, Any]], make: Callable[[dict[str, Any]], Any]
) -> list:
    """Apply `make` to each row.

    Raises:
        BadInput: A field is missing or its value is invalid. The message names the row.
    """
    made = []
    for number, row in enumerate(rows, 1):
        try:
            made.append(make(row))
        except KeyError as error:
            raise BadInput(f"{path}, row {number}: has no {error.args[0]}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise BadInput(f"{path}, row {number}: {error}") from None
    return made


def check_code(folder: str, trust: bool | None) -> bool:
    """Return whether to run the code in the model's folder.

    Raises:
        BadInput: The folder contains code and `trust` is None, or it contains no model.
    """
    path = Path(folder, "config.json")
    if not path.is_file():
        raise BadInput(f"{folder} is no folder of a model: it has no config.json")
    code = json.loads(path.read_text("utf-8")).get("auto_map", {})
    if code and trust is None:
        files = sorted({f"{name.split('.')[0]}.py" for name in code.values()})
        raise BadInput(
            f"{folder} computes its attention in {', '.join(files)}: read it, then add"
            " --trust_remote_code; --no-trust_remote_code takes transformers' own class instead"
        )
    return bool(code and trust)


def load(kind: Any, folder: str, trust: bool, random_weights: bool = False, **config: Any) -> Any:
    """Load a model with a new head by the class `kind`, such as AutoModelForQuestionAnswering.

    With `random_weights` the encoder's weights are random, too.
    """
    settings = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust, **config)
    if random_weights:
        model = kind.from_config(settings, trust_remote_code=trust)
    else:
        print("the head is new: its weights are listed as missing below", file=sys.stderr)
        model = kind.from_pretrained(folder, config=settings, trust_remote_code=trust)
    return model.to(DEVICE)


def longest(tokenizer: Any, folder: str, trust: bool) -> int:
    """Return the maximum number of tokens of the model's input."""
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    return int(min(tokenizer.model_max_length, config.max_position_embeddings))


def fit(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    settings: Settings,
    progress: Callable[[Sequence[Example], float], None] = lambda batch, loss: None,
) -> None:
    """Train all weights. After each batch call `progress` with the batch and its loss."""
    order = random.Random(settings.seed)
    steps = settings.epochs * math.ceil(len(examples) / settings.batch_size)
    warmup = max(1, steps // 10)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))
    )
    model.train()
    for _ in range(settings.epochs):
        for batch in _epoch(examples, settings.batch_size, order):
            scores, targets = _forward(model, tokenizer, batch)
            loss = _loss(scores, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            progress(batch, loss.item())


@torch.inference_mode()
def predict(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    batch_size: int,
    progress: Callable[[Sequence[Example], float], None] = lambda batch, loss: None,
) -> tuple[float, list[Any]]:
    """Return the mean loss, and the predictions in the order of the examples."""
    model.eval()
    total, answers = 0.0, [None] * len(examples)
    by_length = sorted(range(len(examples)), key=lambda i: examples[i].tokens)
    for start in range(0, len(examples), batch_size):
        places = by_length[start : start + batch_size]
        batch = [examples[i] for i in places]
        scores, targets = _forward(model, tokenizer, batch)
        loss = _loss(scores, targets).item()
        total += loss * len(batch)
        best = scores if targets.is_floating_point() else scores.argmax(1)
        for place, answer in zip(places, best.tolist(), strict=True):
            answers[place] = answer
        progress(batch, loss)
    return total / len(examples), answers


def _epoch(examples: Sequence[Example], size: int, order: random.Random) -> Iterator[list[Example]]:
    """Yield all examples in random batches of similar length."""
    shuffled = order.sample(examples, len(examples))
    batches = []
    for start in range(0, len(shuffled), POOL * size):
        pool = sorted(shuffled[start : start + POOL * size], key=lambda example: example.tokens)
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    order.shuffle(batches)
    return iter(batches)


def _forward(model: Any, tokenizer: Any, batch: Sequence[Example]) -> tuple[Any, torch.Tensor]:
    """Return the scores and targets of a batch of B examples with L tokens.

    Returns:
        Arrays of the shapes [B, classes] and [B] for classes or choices, [B, L, 2] and [B, 2] for
        questions, [B, classes, L] and [B, L] for entities, and float [B] and [B] for regression.
    """
    flat = [encoding for example in batch for encoding in example.encodings]
    outputs = model(**tokenizer.pad(flat, return_tensors="pt").to(DEVICE))
    if "logits" in outputs and outputs.logits.ndim == 3:
        scores = outputs.logits.transpose(1, 2)
        filled = [e.target + [IGNORED] * (scores.shape[2] - len(e.target)) for e in batch]
        return scores, torch.tensor(filled, device=DEVICE)
    targets = torch.tensor([example.target for example in batch], device=DEVICE)
    if "start_logits" in outputs:
        return torch.stack([outputs.start_logits, outputs.end_logits], 2), targets
    scores = outputs.logits
    if len(flat) > len(batch):
        scores = scores.view(len(batch), -1)
    return scores.squeeze(1) if targets.is_floating_point() else scores, targets


def _loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mean = functional.mse_loss if targets.is_floating_point() else functional.cross_entropy
    return mean(scores, targets)


def classification(path: Path, encode: Callable) -> tuple[list[Example], dict]:
    """Return the examples of texts with labels, and the labels for the model's config."""
    rows = read_rows(path)
    names = sorted(set(of_each(path, rows, lambda row: str(row["label"]))))
    ids = {name: i for i, name in enumerate(names)}
    examples = of_each(
        path, rows, lambda row: Example([encode(row["text"])], ids[str(row["label"])])
    )
    return examples, {"num_labels": len(names), "id2label": dict(enumerate(names)), "label2id": ids}


def questions(path: Path, encode: Callable) -> tuple[list[Example], dict]:
    """Return the examples of questions. The target is the answer's first and last token."""

    def example(row: dict[str, Any]) -> Example:
        begin = row["context"].find(row["answer"])
        if begin < 0:
            raise ValueError(f"the context does not hold the answer {row['answer']!r}")
        ends = begin, begin + len(row["answer"]) - 1
        encoded = encode(row["question"], row["context"], truncation="only_second")
        return Example([encoded], [encoded.char_to_token(at, sequence_index=1) for at in ends])

    examples = of_each(path, read_rows(path), example)
    # A target is None if the answer is in the part of the context that was cut off.
    return [one for one in examples if None not in one.target], {}


def entities(path: Path, encode: Callable) -> tuple[list[Example], dict]:
    """Return the examples of entities, and the labels for the model's config.

    The target of a token is B-LABEL or I-LABEL in an entity, else O.
    """
    rows = read_rows(path)
    kinds = {
        str(label) for found in of_each(path, rows, lambda r: r["entities"]) for *_, label in found
    }
    names = ["O", *(f"{part}-{kind}" for kind in sorted(kinds) for part in "BI")]
    ids = {name: i for i, name in enumerate(names)}

    def example(row: dict[str, Any]) -> Example:
        encoded, target, before = encode(row["text"]), [], None
        for begin, end, label in row["entities"]:
            if not 0 <= begin < end <= len(row["text"]):
                raise ValueError(f"the text has no characters {begin} to {end} ({label})")
        for token in range(len(encoded["input_ids"])):
            # `place` is the token's range of characters, or None for special tokens. A token may
            # begin with a space, so its last character decides whether it is in an entity.
            place = encoded.token_to_chars(token)
            start = place and max(place.start, place.end - 1)
            within = (e for e in row["entities"] if place and e[0] <= start < e[1])
            entity = next(within, None)
            name = f"{'I' if entity == before else 'B'}-{entity[2]}" if entity else "O"
            target.append(ids[name] if place else IGNORED)
            before = entity
        return Example([encoded], target)

    config = {"num_labels": len(names), "id2label": dict(enumerate(names)), "label2id": ids}
    return of_each(path, rows, example), config


def entities_of(classes: Sequence[int], target: Sequence[int]) -> set[tuple[int, int, int]]:
    """Return the entities in a sequence of token classes.

    Args:
        classes: class of each token. 0 is O. Each label has two classes, first B, then I.
        target: true classes. Tokens with the target IGNORED are skipped.

    Returns:
        First token, last token, and class I of the label, for each entity.
    """
    found: list[tuple[int, int, int]] = []
    for token, (given, counted) in enumerate(zip(classes, target, strict=False)):
        if counted == IGNORED or given <= 0:
            continue
        kind = given + given % 2
        if found and given == kind and found[-1][1:] == (token - 1, kind):
            found[-1] = (found[-1][0], token, kind)
        else:
            found.append((token, token, kind))
    return set(found)


def f1(answers: Sequence[Sequence[int]], examples: Sequence[Example]) -> float:
    """Return F1 of whole entities over all examples.

    F1 is 1 if there are no entities and none is predicted.
    """
    pairs = [
        (entities_of(answer, e.target), entities_of(e.target, e.target))
        for answer, e in zip(answers, examples, strict=True)
    ]
    right, total = sum(len(a & b) for a, b in pairs), sum(len(a) + len(b) for a, b in pairs)
    return 2 * right / total if total else 1.0


# For each task, the function that reads its file, and the class of its model.
TASKS = {
    "classification": (classification, transformers.AutoModelForSequenceClassification),
    "ner": (entities, transformers.AutoModelForTokenClassification),
    "qa": (questions, transformers.AutoModelForQuestionAnswering),
}


def progress_on(stream: TextIO, of: int) -> Callable[[Sequence[Example], float], None]:
    """Return a function for `fit` that shows the progress.

    The function rewrites one line on a terminal, and writes twenty lines to any other stream.
    """
    done, is_terminal = 0, stream.isatty()

    def show(batch: Sequence[Example], loss: float) -> None:
        nonlocal done
        before, done = done, done + len(batch)
        if is_terminal or done * 20 // of > before * 20 // of:
            begin, end = ("\r", "\n" * (done >= of)) if is_terminal else ("", "\n")
            print(f"{begin}{done:,} of {of:,} examples, loss {loss:.4f}", end=end, file=stream)

    return show


def main() -> None:
    """Read the flags, train the model, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--model", required=True, help="folder that `bigbird-ja export` wrote")
    parser.add_argument("--data", required=True, type=Path, help=".jsonl or .jsonl.gz file")
    parser.add_argument("--output", required=True)
    parser.add_argument("--epochs", type=number(int, 1), default=Settings.epochs)
    parser.add_argument("--learning_rate", type=number(float, 0), default=Settings.learning_rate)
    parser.add_argument("--batch_size", type=number(int, 1), default=Settings.batch_size)
    parser.add_argument("--trust_remote_code", action=argparse.BooleanOptionalAction)
    args = parser.parse_args()
    trust = check_code(args.model, args.trust_remote_code)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    most = longest(tokenizer, args.model, trust)

    def encode(*texts: str, truncation: str = "longest_first") -> Any:
        return tokenizer(*texts, truncation=truncation, max_length=most)

    read, kind = TASKS[args.task]
    examples, config = read(args.data, encode)
    random.Random(0).shuffle(examples)
    held_out = max(1, len(examples) // 10)
    settings = Settings(args.epochs, args.learning_rate, args.batch_size)
    transformers.set_seed(settings.seed)
    model = load(kind, args.model, trust, **config)
    progress = progress_on(sys.stderr, settings.epochs * (len(examples) - held_out))
    fit(model, tokenizer, examples[held_out:], settings, progress)
    loss, answers = predict(model, tokenizer, examples[:held_out], settings.batch_size)
    if args.task == "ner":
        measured = {"eval_f1": f1(answers, examples[:held_out])}
    else:
        right = [a == e.target for a, e in zip(answers, examples[:held_out], strict=True)]
        measured = {"eval_accuracy": sum(right) / len(right)}
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    print(json.dumps({"eval_loss": loss, **measured}))


if __name__ == "__main__":
    main()
