"""Score an encoder on four Japanese tasks: JSTS, JCommonsenseQA, JCoLA and JSICK.

    python docs/examples/benchmark.py guide/hf --data downstream --trust_remote_code
    python docs/examples/benchmark.py guide/hf --data downstream --random_weights
    python docs/examples/benchmark.py --data downstream --without_model
    python docs/examples/benchmark.py --data downstream --overlap text.jsonl.gz

Any Hugging Face folder is fine-tuned as finetune.py does, with the same settings for every model
and from three seeds. Each score is kept in --output as it comes, so the same command goes on after
an interruption, and the table that is printed has a row for each model that is kept there.
--without_model (`pip install scikit-learn`) adds what no model is needed for: bag.py.

Files of --data, in any folder below it, as their publishers name them (`git clone` gets them) or as
JSON lines of NAME.jsonl or NAME.jsonl.gz with the fields that are named last:
  https://github.com/yahoojapan/JGLUE   jsts-v1.3/{train,valid}-v1.3.json
                                        = jsts-{train,valid}: sentence1, sentence2, label (0 to 5)
                                        jcommonsenseqa-v1.3/{train,valid}-v1.3.json
                                        = jcommonsenseqa-{train,valid}: question, choices, label
  https://github.com/osekilab/JCoLA     in_domain_{train,valid}-v1.0.jsonl (or .json)
                                        out_of_domain_valid-v1.0.jsonl (or .json)
                                        = jcola-in_domain_train, ...: sentence, label (0 or 1)
  https://github.com/verypluming/JSICK  jsick/{train,test}.tsv
                                        = jsick-{train,test}: sentence1, sentence2, label (a word)
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from finetune import Example, Settings, check_code, fit, load, longest, of_each, predict, read_rows
from measures import acceptability, accuracy, similarity

MAX_TOKENS = 128  # of a text or pair, as in JGLUE's table
JSICK_LABELS = ["contradiction", "entailment", "neutral"]


def pair(row: Mapping[str, Any], encode: Any) -> list[Any]:
    """Encode two sentences as one."""
    return [encode(row["sentence1"], row["sentence2"])]


@dataclass(frozen=True)
class Task:
    """A task: its files, how a row is read, and its measure.

    Attributes:
        train: file to train on, as `FILES` and the table name it.
        tests: files to measure on, by the name that the table gives them.
        encodings: function from a row to its encodings.
        target: function from a row to its target: a float is regressed, an integer classified
            or chosen.
        outputs: scores that the model gives for an encoding.
        measure: function from answers [N] and targets [N] to scores.
    """

    train: str
    tests: Mapping[str, str]
    encodings: Any
    target: Any
    outputs: int
    measure: Any


TASKS = {
    "jsts": Task(
        "jsts-train", {"JSTS": "jsts-valid"}, pair, lambda row: float(row["label"]), 1, similarity
    ),
    "jcommonsenseqa": Task(
        "jcommonsenseqa-train",
        {"JCommonsenseQA": "jcommonsenseqa-valid"},
        lambda row, encode: [encode(row["question"], choice) for choice in row["choices"]],
        lambda row: int(row["label"]),
        1,
        accuracy,
    ),
    "jcola": Task(
        "jcola-in_domain_train",
        {"JCoLA": "jcola-in_domain_valid", "JCoLA out of domain": "jcola-out_of_domain_valid"},
        lambda row, encode: [encode(row["sentence"])],
        lambda row: int(row["label"]),
        2,
        acceptability,
    ),
    "jsick": Task(
        "jsick-train",
        {"JSICK": "jsick-test"},
        pair,
        lambda row: JSICK_LABELS.index(row["label"]),
        3,
        accuracy,
    ),
}


class Progress:
    """Progress and remaining time, every ten seconds on standard error.

    Args:
        total: tokens to go through; one of training counts three times.
        clock: seconds.
    """

    def __init__(self, total: int, clock: Any = time.monotonic) -> None:
        """Begin to count."""
        self._total, self._clock = total, clock
        self._begin = self._shown = clock()
        self._done = 0

    def add(self, title: str, weight: int, batch: Sequence[Example], loss: float) -> None:
        """Count a batch."""
        self._done += weight * sum(example.tokens for example in batch)
        now = self._clock()
        if now - self._shown >= 10:
            self._shown = now
            left = (now - self._begin) * (self._total / self._done - 1) / 60
            print(
                f"{title}: loss {loss:.3f}; {self._done / self._total:.0%} of what is to do,"
                f" {left:.0f} min left",
                file=sys.stderr,
            )


# Our name of a file -> its publisher's, below --data.
FILES = {
    **{f"jsts-{part}": f"jsts-v1.*/{part}-v1.*.json" for part in ("train", "valid")},
    **{
        f"jcommonsenseqa-{part}": f"jcommonsenseqa-v1.*/{part}-v1.*.json"
        for part in ("train", "valid")
    },
    **{
        f"jcola-{part}": f"{part}-v1.*.json*"
        for part in ("in_domain_train", "in_domain_valid", "out_of_domain_valid")
    },
    **{f"jsick-{part}": f"jsick/{part}.tsv" for part in ("train", "test")},
}
# Publishers' fields -> ours.
FIELDS = {
    "sentence_A_Ja": "sentence1",
    "sentence_B_Ja": "sentence2",
    "entailment_label_Ja": "label",
}
CHOICES = [f"choice{i}" for i in range(5)]


def file_of(data: Path, name: str) -> Path:
    """Find NAME.jsonl or NAME.jsonl.gz, or the publisher's file; of several the newest version."""
    for pattern in (f"{name}.jsonl", f"{name}.jsonl.gz", FILES[name]):
        if found := sorted(data.rglob(pattern)):
            return found[-1]
    raise SystemExit(
        f"{data} has no {name}.jsonl, {name}.jsonl.gz or {FILES[name]}: --help says where to get it"
    )


def rows_of(data: Path, name: str) -> tuple[Path, list[dict[str, Any]]]:
    """Read a task's file: its path, and its rows with our fields."""
    path = file_of(data, name)
    if path.suffix == ".tsv":
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file, delimiter="\t"))
    else:
        rows = read_rows(path)
    ours = [{FIELDS.get(key, key): value for key, value in row.items()} for row in rows]
    for row in ours:
        if CHOICES[0] in row:
            row["choices"] = [row[choice] for choice in CHOICES]
    return path, ours


def examples_of(task: Task, tokenizer: Any, most: int, data: Path, name: str) -> list[Example]:
    """Encode a file of a task."""
    path, rows = rows_of(data, name)
    encode = functools.partial(tokenizer, truncation="longest_first", max_length=most)

    def example(row: dict[str, Any]) -> Example:
        return Example(task.encodings(row, encode), task.target(row))

    return of_each(path, rows, example)


def fingerprint(folder: str) -> str:
    """Hash the model's files, so that no other model's scores are taken for its own."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (".safetensors", ".bin", ".json", ".txt", ".model"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def keep(path: Path, value: Any) -> None:
    """Write the kept scores, whole or not at all."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    scratch.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", "utf-8")
    scratch.replace(path)


def kept(path: Path, settings: dict[str, Any], name: str, model: str) -> dict[str, Any]:
    """Read what --output holds, with a place for this model.

    Raises:
        SystemExit: it is of other settings, or of another model of this name.
    """
    new = {"settings": settings, "models": {}}
    there = json.loads(path.read_text("utf-8")) if path.exists() else new
    if there["settings"] != settings:
        raise SystemExit(
            f"{path} holds scores with {there['settings']}, not {settings}: choose another --output"
        )
    if there["models"].setdefault(name, {"model": model, "scores": {}})["model"] != model:
        raise SystemExit(f"{path} holds scores of another model {name}: choose another --output")
    return dict(there)


def table(models: Mapping[str, Any]) -> str:
    """Write Markdown: a row for each model; mean ± standard deviation over the seeds."""
    columns = [
        (task, test, measure)
        for task, about in TASKS.items()
        for test in about.tests
        for measure in about.measure(np.arange(2), np.arange(2))
    ]
    lines = ["| model | " + " | ".join(f"{test}, {m}" for _, test, m in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, model in models.items():
        cells = []
        for task, test, measure in columns:
            by_seed = model["scores"].get(task, {}).values()
            values = [scores[test][measure] for scores in by_seed]
            spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.3f}{spread}" if values else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plain(text: str) -> str:
    """Remove spaces, markers and differences of width."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def overlap(data: Path, corpus: Path, tasks: Iterable[str]) -> str:
    """Count the texts of each test file of the tasks that stand in the corpus as they are."""
    text = plain("\n".join(row["text"] for row in read_rows(corpus)))
    lines = []
    for task in tasks:
        for test in TASKS[task].tests.values():
            fields = ("sentence", "sentence1", "sentence2", "question")
            _, rows = rows_of(data, test)
            texts = {plain(row[f]) for row in rows for f in fields if f in row}
            there = sorted(one for one in texts if one in text)
            lines.append(f"{test}: {len(there)} of {len(texts)} texts stand in {corpus}")
            lines += [f"  {one}" for one in there]
    return "\n".join(lines)


def as_pair(one: str, other: str = "") -> tuple[str, str]:
    """Return the texts themselves in place of a model's encodings."""
    return one, other


def score_bag(args: argparse.Namespace) -> dict[str, Any]:
    """Measure answers by TF-IDF; return all that is kept."""
    try:
        import bag
        import sklearn
    except ModuleNotFoundError as error:
        raise SystemExit(f"--without_model: {error}: pip install scikit-learn") from None
    results: dict[str, Any] = {}
    for task_name in args.task or TASKS:
        task = TASKS[task_name]
        read = {f: rows_of(args.data, f)[1] for f in (task.train, *task.tests.values())}
        rows = {f: [task.encodings(row, as_pair) for row in each] for f, each in read.items()}
        targets = {f: [task.target(row) for row in each] for f, each in read.items()}
        tests = [rows[file] for file in task.tests.values()]
        answered = bag.answers(rows[task.train], targets[task.train], tests)
        for (test, file), by_method in zip(task.tests.items(), answered, strict=True):
            for method, answers in by_method.items():
                name = f"TF-IDF, {method}"
                results = kept(
                    args.output, fixed_settings(args), name, f"scikit-learn {sklearn.__version__}"
                )
                scores = results["models"][name]["scores"].setdefault(task_name, {})
                measured = task.measure(answers, np.array(targets[file]))
                scores.setdefault("0", {})[test] = measured
                keep(args.output, results)
    return results


def settings_of(args: argparse.Namespace) -> Settings:
    """Return how every model is fine-tuned."""
    return Settings(epochs=args.epochs, learning_rate=args.learning_rate, batch_size=32)


def fixed_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts that all scores of --output share."""
    return {key: value for key, value in asdict(settings_of(args)).items() if key != "seed"}


def score(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune and measure the runs that have no scores yet; return all scores."""
    trust = check_code(args.model, args.trust_remote_code)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    most = min(MAX_TOKENS, longest(tokenizer, args.model, trust))
    settings = settings_of(args)
    name = args.name or Path(args.model).name
    name += " (random weights)" if args.random_weights else ""
    results = kept(args.output, fixed_settings(args), name, fingerprint(args.model))
    scores = results["models"][name]["scores"]
    todo = [
        (task, seed)
        for task in args.task or TASKS
        for seed in range(args.seeds)
        if str(seed) not in scores.get(task, {})
    ]
    encoded = {
        (task, file): examples_of(TASKS[task], tokenizer, most, args.data, file)
        for task in dict(todo)
        for file in (TASKS[task].train, *TASKS[task].tests.values())
    }
    tokens = {key: sum(e.tokens for e in examples) for key, examples in encoded.items()}
    work = {
        task: 3 * settings.epochs * tokens[task, TASKS[task].train]
        + sum(tokens[task, file] for file in TASKS[task].tests.values())
        for task in dict(todo)
    }
    progress = Progress(sum(work[task] for task, _ in todo))
    for task_name, seed in todo:
        task, title = TASKS[task_name], f"{task_name}, seed {seed + 1} of {args.seeds}"
        transformers.set_seed(seed)
        classifier = transformers.AutoModelForSequenceClassification
        model = load(classifier, args.model, trust, args.random_weights, num_labels=task.outputs)
        examples, after = encoded[task_name, task.train], functools.partial(progress.add, title, 3)
        fit(model, tokenizer, examples, replace(settings, seed=seed), after)
        measured = {}
        for test, file in task.tests.items():
            examples = encoded[task_name, file]
            after = functools.partial(progress.add, title, 1)
            _, answers = predict(model, tokenizer, examples, settings.batch_size, after)
            targets = np.array([example.target for example in examples])
            measured[test] = task.measure(np.array(answers), targets)
        scores.setdefault(task_name, {})[str(seed)] = measured
        keep(args.output, results)
        print(f"{title}: {measured}", file=sys.stderr)
    return results


def main() -> None:
    """Read the command line, score, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="FOLDER")
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks' files")
    parser.add_argument("--output", type=Path, default=Path("benchmark.json"))
    parser.add_argument("--name", help="of the model's row (default: the folder's)")
    parser.add_argument("--task", action="append", choices=TASKS, help="repeatable; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--learning_rate", type=float, default=5e-5, help="a model of a few layers needs more: 5e-4"
    )
    parser.add_argument("--trust_remote_code", action=argparse.BooleanOptionalAction)
    parser.add_argument("--random_weights", action="store_true", help="the same model, untrained")
    parser.add_argument("--without_model", action="store_true", help="TF-IDF's rows")
    parser.add_argument("--json", action="store_true", help="the kept scores instead of the table")
    parser.add_argument("--overlap", type=Path, help="counts test texts that stand in this corpus")
    args = parser.parse_args()
    if args.overlap:
        print(overlap(args.data, args.overlap, args.task or TASKS))
        return
    if bool(args.model) == args.without_model:
        parser.error("name the FOLDER of a model, or --without_model")
    transformers.logging.set_verbosity_error()
    results = score_bag(args) if args.without_model else score(args)
    print(json.dumps(results, ensure_ascii=False) if args.json else table(results["models"]))


if __name__ == "__main__":
    main()
