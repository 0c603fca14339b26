"""Bad input for every command: flags, configs, corpora, tokenizers, data sets, models.

tests/test_bad_inputs.py tries each one; scripts/bench_bad_input.py counts them. Of each must come
status 2, one clear line, no traceback, and nothing written.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bigbird_ja.cli import main
from testkit.runs import SmallRun

_CONFIGS = {
    "broken": "model: [",
    "list": "- model\n",
    "unknown-key": "model:\n  hiden_size: 64\n",
    "unknown-section": "modle:\n  hidden_size: 64\n",
    "not-a-number": "model:\n  hidden_size: many\n",
    "code": "model: !!python/object/apply:os.system ['true']\n",
    "heads": "model:\n  hidden_size: 30\n  num_attention_heads: 4\n",
}
_TEXTS = {
    "empty.jsonl": b"",
    "blank.txt": b"\n \n\n",
    "latin.txt": "日本語".encode("utf-16"),
    "no-text.jsonl": b'{"body": "x"}\n',
    "no-json.jsonl": b"{oops\n",
    "number.jsonl": b'{"text": 5}\n',
    "plain.jsonl.gz": b'{"text": "x"}\n',
    "cut.jsonl.gz": gzip.compress(b'{"text": "' + b"x" * 5000 + b'"}\n', mtime=0)[:-20],
    "table.csv": b"a,b\n",
}

# Command and flags; {t} holds bad files, {w} good ones, {o} is a path that nothing must write to.
_MAKE = "make-data --tokenizer={w}/t.model --output_dir={o}"
_TRAIN = "pretrain --data_dir={w}/data --model_dir={o}"
CASES: tuple[str, ...] = (
    "train",
    "pretrian --help",
    "plan --no_such_flag=1",
    "plan --set=model.num_layers",
    "plan --set=model.num_layers=",
    "plan --set=modle.num_layers=2",
    "plan --num_train_steps=many",
    *(f"plan --config={{t}}/{name}.yaml" for name in _CONFIGS),
    "plan --config={t}/none.yaml",
    "plan --config={t}",
    "plan --data_dir={t}/none",
    "plan --data_dir={t}/data-garbage-manifest",
    "plan --prices={t}/broken.yaml",
    "plan --prices={t}/none.yaml",
    "plan --preflight={t}/no-json.jsonl",
    "plan --tokens=-1",
    "plan --num_train_steps=-5",
    "plan --mfu=0",
    "plan --zone=Mars",
    "sample --documents=3",
    "sample --documents=-1 --output={o}",
    "sample --documents=some --output={o}",
    "sample --documents=3 --mean_length=0 --output={o}",
    "sample --documents=3 --output={w}/corpus.jsonl/x.jsonl",
    "tokenize --output_prefix={o}",
    "tokenize --input={w}/corpus.jsonl",
    "tokenize --input={t}/none.jsonl --output_prefix={o}",
    "tokenize --input={t}/none*.jsonl --output_prefix={o}",
    "tokenize --input=tfds:no_such_set/ja --output_prefix={o}",
    "tokenize --input=tfds:wiki40b/ja --tfds_data_dir={t}/none --output_prefix={o}",
    *(f"tokenize --input={{t}}/{name} --output_prefix={{o}}" for name in _TEXTS),
    "tokenize --input={w}/corpus.jsonl --output_prefix={o} --vocab_size=3",
    "tokenize --input={w}/corpus.jsonl --output_prefix={o} --vocab_size=9000000",
    "tokenize --input={w}/corpus.jsonl --output_prefix={o} --model_type=word",
    "tokenize --input={w}/corpus.jsonl --output_prefix={o} --character_coverage=2",
    "tokenize --input={w}/corpus.jsonl --output_prefix={o} --max_sentences=0",
    "make-data --input={w}/corpus.jsonl --output_dir={o}",
    "make-data --input={w}/corpus.jsonl --tokenizer={w}/t.model",
    "make-data --tokenizer={w}/t.model --output_dir={o}",
    "make-data --input={w}/corpus.jsonl --tokenizer={t}/none.model --output_dir={o}",
    "make-data --input={w}/corpus.jsonl --tokenizer={t}/table.csv --output_dir={o}",
    *(f"{_MAKE} --input={{t}}/{name}" for name in _TEXTS),
    f"{_MAKE} --input={{w}}/corpus.jsonl --input={{w}}/corpus.jsonl",
    *(
        f"{_MAKE} --input={{w}}/corpus.jsonl={weight}"
        for weight in ("", "0", "-1", "two", "nan", "inf", "1e400", "1001", "0.00001", "9" * 400)
    ),
    f"{_MAKE} --input={{w}}/corpus.jsonl=1 --input={{w}}/corpus.jsonl=2",
    f"{_MAKE} --input={{t}}/none.jsonl=2",
    "tokenize --input={w}/corpus.jsonl=2 --output_prefix={o}",
    *(
        f"{_MAKE} --input={{w}}/corpus.jsonl {flags}"
        for flags in (
            "--seq_length=5", "--seq_length=-256", "--masking=none",
            "--masking=static --dupe_factor=0", "--masked_lm_prob=1.5",
            "--max_predictions_per_seq=0", "--num_shards=-1", "--num_workers=0",
            "--eval_fraction=1", "--eval_fraction=-0.1", "--word_boundaries=spaces",
            "--mask_unit=letter", "--runner=spark",
        )
    ),
    "make-data --input={w}/corpus.jsonl --tokenizer={w}/t.model --output_dir={w}/data",
    "make-data --input={w}/corpus.jsonl --tokenizer={w}/t.model --output_dir={w}/corpus.jsonl",
    "check-data",
    "check-data --data_dir={t}/none",
    "check-data --data_dir={w}/model",
    *(
        f"check-data --data_dir={{t}}/data-{damage}"
        for damage in (
            "garbage-manifest", "no-manifest", "truncated", "flipped", "missing", "extra",
        )
    ),
    "preflight --chip=v9",
    "preflight --topology=v5ee:2x4",
    "preflight --batch_per_core=0",
    "preflight --config={t}/heads.yaml",
    "preflight --set=make_data.seq_length=1000",
    f"{_TRAIN} --config={{t}}/heads.yaml",
    "pretrain --model_dir={o}",
    "pretrain --data_dir={w}/data",
    *(
        f"pretrain --model_dir={{o}} --data_dir={{t}}/data-{damage}"
        for damage in ("garbage-manifest", "no-manifest", "truncated", "missing")
    ),
    *(
        f"{_TRAIN} {flags}"
        for flags in (
            "--set=make_data.seq_length=512", "--set=tokenize.vocab_size=32000",
            "--set=make_data.max_predictions_per_seq=41", "--num_train_steps=0",
            "--num_train_steps=-1", "--mode=test", "--set=training.dtype=float8",
            "--set=training.learning_rate=nan", "--set=training.schedule=sometimes",
            "--set=training.global_batch_size=3 --set=training.gradient_accumulation_steps=2",
            "--set=training.global_batch_size=0",
            "--set=model.attention_type=sparse", "--set=model.random_pattern=best",
            "--set=model.block_size=20", "--set=model.hidden_dropout_prob=1",
            "--init_from={t}/none", "--init_from={t}", "--profile_steps=9:3",
        )
    ),
    "pretrain --data_dir={w}/data --model_dir={w}/model --set=model.num_layers=3",
    "pretrain --data_dir={w}/data --model_dir={w}/corpus.jsonl",
    "evaluate --data_dir={w}/data",
    "evaluate --model_dir={w}/model",
    "evaluate --model_dir={t}/none --data_dir={w}/data",
    "evaluate --model_dir={t} --data_dir={w}/data",
    "evaluate --model_dir={w}/model --data_dir={t}/data-no-manifest",
    "evaluate --model_dir={w}/model --data_dir={w}/data --step=99",
    "evaluate --model_dir={w}/model --data_dir={w}/data --step=last-but-one",
    "evaluate --model_dir={w}/model --data_dir={w}/data --plot={o}",
    "evaluate --model_dir={w}/model --data_dir={w}/data --probe --probe_input={t}/none.jsonl",
    "fill-mask --text=[MASK]",
    "fill-mask --model_dir={t}/none --text=[MASK]",
    "fill-mask --model_dir={w}/model --text=何もない",
    "fill-mask --model_dir={w}/model --text=[MASK] --step=99",
    "fill-mask --model_dir={w}/model --text=[MASK] --top_k=0",
    "fill-mask --model_dir={w}/model --file={t}/none.txt",
    "fill-mask --model_dir={w}/model --file={t}/latin.txt",
    "report --output={o}",
    "report --model_dir={t}/none --output={o}",
    "report --model_dir={w}/data --output={o}",
    "export --model_dir={w}/model",
    "export --output_dir={o}",
    "export --model_dir={t}/none --output_dir={o}",
    "export --model_dir={w}/model --output_dir={o} --format=onnx",
    "export --model_dir={w}/model --output_dir={o} --step=99",
    "export --model_dir={w}/model --output_dir={o} --max_position=100",
    "export --model_dir={w}/model --output_dir={w}/data",
    "export --model_dir={w}/model --output_dir={w}/corpus.jsonl",
    *(
        f"launch --dry_run --data_dir=gs://b/d {flags}"
        for flags in (
            "--name=A_B --accelerator_type=v3-8 --zones=us-central1-a --bucket=gs://b",
            "--name=a --accelerator_type=v3-8 --zones=us-central1-a --bucket=b:/c",
            "--name=a --accelerator_type=v9-8 --zones=us-central1-a --bucket=gs://b",
            "--name=a --accelerator_type=v5p-8 --zones=us-central1-a --bucket=gs://b"
            " --engine=estimator",
            "--name=a --accelerator_type=v3-8 --bucket=gs://b --zones=Mars",
            "--name=a --accelerator_type=v3-8 --zones=us-central1-a --bucket=gs://b"
            " --max_hours=-1",
            "--name=a --accelerator_type=v3-8 --zones=us-central1-a --bucket=gs://b --max_cost=0",
            "--name=a --accelerator_type=v3-8 --zones=us-central1-a --bucket=gs://b"
            " --pricing=free",
        )
    ),
    "status",
    "down",
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """Where good and bad files lie."""

    good: Path
    bad: Path


def make_world(directory: Path, run: SmallRun) -> World:
    """Copies of a small run and its inputs, and everything bad that the cases name."""
    world = World(directory / "good", directory / "bad")
    world.good.mkdir(parents=True)
    world.bad.mkdir()
    shutil.copytree(run.data_dir, world.good / "data")
    shutil.copytree(run.model_dir, world.good / "model")
    shutil.copy(run.corpus, world.good / "corpus.jsonl")
    shutil.copy(run.tokenizer, world.good / "t.model")
    for name, text in _CONFIGS.items():
        (world.bad / f"{name}.yaml").write_text(text)
    for name, data in _TEXTS.items():
        (world.bad / name).write_bytes(data)
    for damage in ("garbage-manifest", "no-manifest", "truncated", "flipped", "missing", "extra"):
        copy = world.bad / f"data-{damage}"
        shutil.copytree(run.data_dir, copy)
        _damage(copy, damage)
    return world


def _damage(data: Path, how: str) -> None:
    shard = data / "train-00001-of-00004.tfrecord"
    content = shard.read_bytes()
    if how == "garbage-manifest":
        (data / "manifest.json").write_text('{"version": ')
    elif how == "no-manifest":
        (data / "manifest.json").unlink()
    elif how == "truncated":
        shard.write_bytes(content[:-7])
    elif how == "flipped":
        middle = len(content) // 2
        shard.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "missing":
        shard.unlink()
    else:
        (data / "train-00009-of-00004.tfrecord").write_bytes(content)


def problem_of(case: str, world: World, output: Path) -> str | None:
    """Runs a case in this process; what is wrong with how it ended, or None.

    Args:
        case: one of `CASES`.
        world: from `make_world`.
        output: a path at which nothing lies.
    """
    places = {"w": world.good, "t": world.bad, "o": output}
    arguments = [word.format(**places) for word in case.split(" ")]
    before = dict(_state(world))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main.run_command_line([*arguments, "--json"])
        except SystemExit as ended:
            status = ended.code
    said = err.getvalue().rstrip()
    last = said.splitlines()[-1] if said else ""
    if status != 2:
        return f"status {status}: {last}"
    if "Traceback" in said or not last.startswith("bigbird-ja: "):
        return f"not one clear line: {said[-500:]}"
    if json.loads(out.getvalue().splitlines()[-1]).get("reason") != "bad_input":
        return f"another reason: {out.getvalue()[-300:]}"
    if dict(_state(world)) != before:
        return "something was written"
    left = [path for path in output.parent.glob(f"{output.name}*") if path.is_file()]
    left += [path for path in output.rglob("*") if path.is_file()]
    return f"left behind: {left[0]}" if left else None


def _state(world: World) -> Iterator[tuple[str, str]]:
    """Every file of the world and its content."""
    for root in (world.good, world.bad):
        for path in sorted(root.rglob("*")):
            if path.is_file():
                yield str(path), hashlib.blake2b(path.read_bytes()).hexdigest()
