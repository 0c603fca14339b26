"""Score an encoder on four Japanese tasks: JSTS, JCommonsenseQA, JCoLA and JSICK.

    python docs/examples/benchmark.py guide/hf --data downstream --trust_remote_code
    python docs/examples/benchmark.py guide/hf --data downstream --random_weights

Fine-tunes any Hugging Face folder as finetune.py does, from three seeds, with the same settings for
every model. The file --output stores the scores of all models. Rerun an interrupted command to
continue. The folder --data or its subfolders contain files of https://github.com/yahoojapan/JGLUE,
https://github.com/osekilab/JCoLA and https://github.com/verypluming/JSICK under their own names, or
files NAME.jsonl or NAME.jsonl.gz with the following names and fields:

    jsts-{train,valid}, jsick-{train,test}                       sentence1, sentence2, label
    jcommonsenseqa-{train,valid}                                 question, choices, label
    jcola-in_domain_{train,valid}, jcola-out_of_domain_valid     sentence, label
"""

import argparse
import csv
import functools
import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import finetune
import numpy as np
import transformers
from finetune import BadInput, Example, fit, number, of_each, predict, read_rows

MAX_TOKENS = 128  # maximum length of a text or a pair of texts, as in JGLUE's table
JSICK_LABELS = ("contradiction", "entailment", "neutral")
FILES = {
    **{name: f"{name}-v1.*/{{}}-v1.*.json" for name in ("jsts", "jcommonsenseqa")},
    **{"jcola": "{}-v1.*.json*", "jsick": "jsick/{}.tsv"},
}
FIELDS = {"sentence_A_Ja": "sentence1", "sentence_B_Ja": "sentence2"}
FIELDS |= {"entailment_label_Ja": "label"}


class Task(NamedTuple):
    """Task of the benchmark.

    Attributes:
        train: name of the file with training examples.
        tests: names of the files with test examples, by heading of the table.
        target: function that converts a label.
        outputs: number of outputs of the model.
        measures: names of functions in `MEASURES`.
    """

    train: str
    tests: dict[str, str]
    target: Any
    outputs: int
    measures: tuple[str, ...]


QA = "jcommonsenseqa-train", {"JCommonsenseQA": "jcommonsenseqa-valid"}
JCOLA = {"JCoLA": "jcola-in_domain_valid", "JCoLA out of domain": "jcola-out_of_domain_valid"}
TASKS = {
    "jsts": Task("jsts-train", {"JSTS": "jsts-valid"}, float, 1, ("Pearson", "Spearman")),
    "jcommonsenseqa": Task(*QA, int, 1, ("accuracy",)),
    "jcola": Task("jcola-in_domain_train", JCOLA, int, 2, ("accuracy", "MCC")),
    "jsick": Task("jsick-train", {"JSICK": "jsick-test"}, JSICK_LABELS.index, 3, ("accuracy",)),
}


def correlate(one: np.ndarray, other: np.ndarray) -> float:
    """Return Pearson's correlation of two arrays [N], or 0 if one of them is constant."""
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else 0.0


def correlate_ranks(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's correlation of two arrays [N]. Equal values share their mean rank."""
    counted = [
        np.unique(each, return_inverse=True, return_counts=True)[1:] for each in (one, other)
    ]
    ranks = [(np.cumsum(counts) - (counts - 1) / 2)[where] for where, counts in counted]
    return correlate(*ranks)


MEASURES = {
    "Pearson": correlate,
    "Spearman": correlate_ranks,
    "accuracy": lambda one, other: float(np.mean(one == other)),
    "MCC": correlate,  # For two classes, Matthews' correlation equals Pearson's correlation.
}


def read(data: Path, name: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return the path of a task's file, and its rows after fields are renamed by `FIELDS`."""
    task, part = name.split("-")
    patterns = (f"{name}.jsonl", f"{name}.jsonl.gz", FILES[task].format(part))
    newest = [path for pattern in patterns for path in sorted(data.rglob(pattern))[-1:]]
    if not newest:
        raise BadInput(f"{data} contains no {', '.join(patterns)}")
    path = newest[0]
    if path.suffix == ".tsv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file, delimiter="\t"))
    else:
        rows = read_rows(path)
    for row in rows:
        row.update({FIELDS[key]: row.pop(key) for key in FIELDS if key in row})
        if "choice0" in row:
            row["choices"] = [row[f"choice{i}"] for i in range(5)]
    return path, rows


def encode(task: Task, tokenizer: Any, data: Path, name: str) -> list[Example]:
    """Return the examples of a task's file."""

    def example(row: dict[str, Any]) -> Example:
        if "choices" in row:
            texts = [(row["question"], choice) for choice in row["choices"]]
        else:
            names = ("sentence",) if task is TASKS["jcola"] else ("sentence1", "sentence2")
            texts = [tuple(row[name] for name in names)]
        return Example([tokenizer(*each) for each in texts], task.target(row["label"]))

    return of_each(*read(data, name), example)


def table(models: dict[str, Any]) -> str:
    """Return a Markdown table of the models: mean ± standard deviation over the seeds."""
    columns = [
        (t, test, m) for t, task in TASKS.items() for test in task.tests for m in task.measures
    ]
    lines = ["| model | " + " | ".join(f"{test}, {measure}" for _, test, measure in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, model in models.items():
        cells = []
        for task, test, measure in columns:
            values = [seed[test][measure] for seed in model["scores"].get(task, {}).values()]
            spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.3f}{spread}" if values else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def digest(folder: str) -> str:
    """Return a checksum of a model, which the output file stores with the model's scores."""
    found = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (".safetensors", ".bin", ".json", ".txt", ".model"):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def score(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune and measure a model for each task and seed that has no stored scores.

    Returns:
        The scores of all models in the output file.
    """
    trust = finetune.check_code(args.model, args.trust_remote_code)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    most = min(MAX_TOKENS, finetune.longest(tokenizer, args.model, trust))
    tokenizer = functools.partial(tokenizer, truncation="longest_first", max_length=most)
    settings = finetune.Settings(args.epochs, args.learning_rate, batch_size=32)
    fixed = {key: value for key, value in asdict(settings).items() if key != "seed"}
    kept = json.loads(args.output.read_text("utf-8")) if args.output.exists() else {"models": {}}
    if kept.setdefault("settings", fixed) != fixed:
        raise BadInput(f"{args.output} has scores of other settings: choose another --output")
    name = Path(args.model).name + (" (random weights)" if args.random_weights else "")
    model_digest = digest(args.model)
    row = kept["models"].setdefault(name, {"model": model_digest, "scores": {}})
    if row["model"] != model_digest:
        raise BadInput(f"{args.output} has scores of another {name}: choose another --output")
    for task_name in args.task or TASKS:
        task, scores = TASKS[task_name], row["scores"].setdefault(task_name, {})
        for seed in (seed for seed in range(args.seeds) if str(seed) not in scores):
            files = (task.train, *task.tests.values())
            train, *tests = (encode(task, tokenizer, args.data, file) for file in files)
            transformers.set_seed(seed)
            kind, options = transformers.AutoModelForSequenceClassification, args.random_weights
            model = finetune.load(kind, args.model, trust, options, num_labels=task.outputs)
            fit(model, tokenizer.func, train, replace(settings, seed=seed))
            found: dict[str, dict[str, float]] = {}
            for test, examples in zip(task.tests, tests, strict=True):
                answers = predict(model, tokenizer.func, examples, settings.batch_size)[1]
                both = np.array(answers), np.array([example.target for example in examples])
                found[test] = {measure: MEASURES[measure](*both) for measure in task.measures}
            scores[str(seed)] = found
            scratch = args.output.with_name(f"{args.output.name}.tmp")
            scratch.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", "utf-8")
            scratch.replace(args.output)
            print(f"{task_name}, seed {seed + 1} of {args.seeds}: {found}", file=sys.stderr)
    return dict(kept["models"])


def main() -> None:
    """Score a model, and print the table of all models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="FOLDER")
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks' files")
    parser.add_argument("--output", type=Path, default=Path("benchmark.json"))
    parser.add_argument("--task", action="append", choices=TASKS, help="repeatable; default: all")
    parser.add_argument("--seeds", type=number(int, 1), default=3)
    parser.add_argument("--epochs", type=number(int, 1), default=4)
    parser.add_argument("--learning_rate", type=number(float, 0), default=5e-5)
    parser.add_argument("--trust_remote_code", action=argparse.BooleanOptionalAction)
    parser.add_argument("--random_weights", action="store_true", help="the same model, untrained")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    print(table(score(args)))


if __name__ == "__main__":
    main()
