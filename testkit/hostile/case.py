"""One hostile invocation, and the good ones that they are made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bigbird_ja.cli import main

# A good invocation of each command. {in} holds a small finished run, {out} is an empty folder.
GOOD: dict[str, str] = {
    "demo": "--work_dir={out}/demo",
    "sample": "--output={out}/sample.jsonl --documents=3",
    "tokenize": "--input={in}/corpus.jsonl --output_prefix={out}/ja --vocab_size=1200",
    "make-data": "--input={in}/corpus.jsonl --tokenizer={in}/ja.model --output_dir={out}/data"
    " --seq_length=256 --num_shards=4 --eval_fraction=0.1",
    "check-data": "--data_dir={in}/data",
    "config": "{in}/config.yaml",
    "plan": "--config={in}/config.yaml --data_dir={in}/data --price_file={in}/prices.yaml"
    " --preflight={in}/preflight.json --plot={out}/plan.png",
    "preflight": "--config={in}/config.yaml --output={out}/figures.json --dump_hlo={out}/hlo",
    "pretrain": "--config={in}/config.yaml --data_dir={in}/data --model_dir={out}/model"
    " --num_train_steps=2",
    "evaluate": "--model_dir={in}/model --data_dir={in}/data",
    "fill-mask": "--model_dir={in}/model --text=日本の[MASK]",
    "report": "--model_dir={in}/model --output={out}/report.html",
    "export": "--model_dir={in}/model --output_dir={out}/hf --parity_sequences=0",
    "launch": "--config={in}/config.yaml --price_file={in}/prices.yaml --dry_run",
    "status": "--bucket=gs://bucket",
    "logs": "base-1 --bucket=gs://bucket",
    "down": "--project=project --yes --dry_run",
    "doctor": "",
}
# These reach for a service: they are given hostile values only where no service is asked before.
REMOTE = frozenset({"status", "logs", "down", "doctor"})
# These compile for minutes: a good invocation is not run to its end.
LONG = frozenset({"preflight", "demo"})

REFUSED = frozenset({2})
# Not needed; refused; a model of default size, more than a small machine has; failing storage.
DAMAGED = frozenset({0, 2, 71, 74})
ANY = frozenset({0, 2, 70, 71, 74, 75})


@dataclass(frozen=True)
class Case:
    """One invocation and how it may end.

    Args:
        name: what is hostile, in a few words; unique.
        command: the command.
        arguments: its words; {in} and {out} are filled in. May hold surrogate escapes, for bytes
            that are not UTF-8.
        statuses: the exit statuses that are right.
        prepare: called with the folders of inputs and outputs before the command runs.
        obeys_permissions: root is refused what it may not read or write, as any user.
        other_result: where it is taken, its results may be others than those of the good one.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    statuses: frozenset[int] = REFUSED
    prepare: Callable[[Path, Path], None] | None = None
    obeys_permissions: bool = False
    other_result: bool = False


def commands(*left_out: str) -> list[str]:
    """Every command, in the order of use, without those named."""
    return [name for name in main.COMMANDS if name not in left_out]


def good_arguments(command: str) -> list[str]:
    """The words of the good invocation."""
    return GOOD[command].split(" ")


def sample_of(cases: Iterator[Case], share: int, seed: int) -> list[Case]:
    """One in `share` of the cases, rounded up, drawn by their names hashed with the seed."""

    def place(case: Case) -> bytes:
        text = f"{seed} {case.command} {case.name}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=8).digest()

    drawn = sorted(cases, key=place)
    return drawn[: -(-len(drawn) // share)]
