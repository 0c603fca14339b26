"""Every command refuses bad input with one line and status 2, and does not change any file.

Bad values of flags and settings are tested in tests/cli/test_command_flags.py, damaged files in
tests/test_hostile.py. The tests of each package cover the input that its own readers refuse.
"""

import json
import shutil
from pathlib import Path

import pytest

from bigbird_ja import cli
from testkit import runs, synthetic

# Cases that end with one of these texts fail only after the command has printed the settings.
_FOUND_LATER = ("/no-text.jsonl", "--set=model.num_layers=3")
_FILES = {
    "no-text.jsonl": '{"body": "x"}\n',
    "no-rate.json": '{"chips": [{"chip": "v3", "fits": true}]}',
    "no-effect.yaml": "model: {architecture: modernbert, block_size: 8}",
    "huge.txt": "x" * (1 << 20 | 1),
    # Files that bigbird-ja did not write, although their names are those of its outputs.
    **dict.fromkeys(("a/ja.model", "b/ja.vocab", "c/ja.json", "c/model.ckpt-9.index"), "a thesis"),
    "c/export.json": "{}",
}
_TOKENIZE = "tokenize --output_prefix={o}"
_MAKE = "make-data --tokenizer={w}/ja.model --output_dir={o} --input={w}/corpus.jsonl"
_TRAIN = "pretrain --data_dir={w}/data --model_dir={o}"
_RESUME = "pretrain --data_dir={w}/data --model_dir={w}/model"
_LAUNCH = "launch --dry_run --max_cost=5 --config=modernbert-8192"
_EIGHT = "launch --dry_run --max_hours=100 --config=tiny-cpu --set=training.global_batch_size=8"
_RENT = "launch --name=a --project=p --bucket=gs://b --data_dir=gs://b/d"
_EVALUATE = "evaluate --model_dir={w}/model --data_dir={w}/data"
_FILL = "fill-mask --model_dir={w}/model"
_EXPORT = "export --model_dir={w}/model --output_dir={o}"
_FOREIGN_FILE = "was not created by bigbird-ja"
_FOREIGN_FOLDER = "contains files that were not created by bigbird-ja, such as "
# Each case is a command with its flags, and a text that the error message must contain. {w} is a
# folder with good files, {t} is a folder with bad files, and {o} is a path that must stay unused.
CASES = (
    ("plan --config=base-409", "the presets are base-4096, "),
    ("plan --data_dir={t}/none", "Run `bigbird-ja make-data`"),
    ("plan --price_file={t}/none.yaml", "none.yaml: no such file"),
    ("plan --config=base-4096 --preflight={w}/preflight.json", "sequences of 256 tokens"),
    ("plan --preflight={t}/no-rate.json", "required field `seq_length`"),
    ("plan --accelerator_type=v3-9", "no TPU has that size"),
    ("plan --init_from={t}/none", "no such folder or checkpoint"),
    (
        _TOKENIZE + " --input={w}/corpus.jsonl --set=model.num_layers=3",
        "has no effect in this command",
    ),
    ("sample --documents=3 --output={w}/corpus.jsonl/x.jsonl", "is not a folder"),
    ("sample --documents=3 --output={o}.exe", "the name must end in .jsonl"),
    (_TOKENIZE + " --input={t}/none*.jsonl", "no file matches"),
    (_TOKENIZE + " --input=tfds:no_such_set/ja", "if that can be reached"),
    (_TOKENIZE + " --input={w}/corpus.jsonl --encoding=cp99", "--encoding 'cp99': Python has no"),
    (_TOKENIZE + " --input={w}/corpus.jsonl --text_field=body", "text. Add one to --text_field"),
    (_TOKENIZE + " --input={w}/corpus.jsonl --tfds_data_dir={w}", "none of --input is tfds:"),
    (_TOKENIZE + " --input={w}/corpus.jsonl=2", "only make-data accepts weights. Leave =2 out"),
    (_MAKE + "=0", "Write SRC=WEIGHT"),
    (_MAKE + " --input={t}/no-text.jsonl", "no-text.jsonl line 1: no field text"),
    (_MAKE + " --tokenizer={t}/none.model", "no tokenizer "),
    (_MAKE + " --tokenizer={w}/corpus.jsonl", "not a SentencePiece model (it is damaged, or a"),
    (_MAKE + " --tokenizer={w}", "a folder: give the model in it, "),
    (_MAKE + " --output_dir={w}/data", "(--seq_length 256 there, 4096 requested"),
    (_MAKE + " --output_dir={w}", "overlaps with --input"),
    (_MAKE + " --input_mask", "--input_mask is for static --masking"),
    (_MAKE + " --seq_length=128 --max_predictions_per_seq=500", "is more than --seq_length 128"),
    (_MAKE + " --config=tiny-cpu --seq_length=1000", "992"),
    ("check-data --data_dir={t}/none", "no manifest.json"),
    ("preflight --data_dir={w}/data --set=make_data.seq_length=512", "512 (--set) disagrees with "),
    ("preflight --init_from={t}/none", "no such folder or checkpoint"),
    ("preflight --chip=v9", "one of v2, v3"),
    ("preflight --topology=v5e:3x3", "v5e:3x3: there is no such slice. Use a shape such as 2x2"),
    ("preflight --topology=v5e:2x2x2", "v5e:2x2x2: there is no such slice"),
    ("pretrain --data_dir={w}/corpus.jsonl --model_dir={o}", "a file, not a data set. Give the"),
    (_TRAIN + " --set=make_data.seq_length=512", "512 (--set) disagrees with "),
    (_TRAIN + " --set=make_data.eval_fraction=0.2", "--set: make_data.eval_fraction has no effect"),
    (_TRAIN + " --set=training.eval_every_steps=5", "no effect without --mode train_and_eval: add"),
    (_TRAIN + " --set=training.eval_max_batches=5", "no effect without --mode train_and_eval: add"),
    (_TRAIN + " --set=tpu.name=x", "tpu.name has no effect without --use_tpu: add --use_tpu"),
    (_LAUNCH + " --set=training.eval_max_batches=5", "no effect without --mode train_and_eval: ad"),
    (_LAUNCH + " --set=tpu.name=x", "--set: tpu.name has no effect in this command"),
    (_TRAIN + " --set=model.vocab_size=9000", "disagrees with 1200 in "),
    (_LAUNCH + " --set=model.initializer=subspaces", "has no effect with model.arch"),
    (_TRAIN + " --set=model.block_size=20", "not a multiple of two attention blocks"),
    (_TRAIN + " --use_tpu", "this machine has no TPU: run on a TPU VM, or leave --use_tpu out"),
    (_TRAIN + " --set=tpu.num_cores=8", "tpu.num_cores (--set) has no effect under --engine pjrt"),
    (_TRAIN + " --profile_steps=9", "--profile_steps 9: give the first and the last step"),
    (_TRAIN + " --profile_steps=0-3", "--profile_steps 0-3: "),
    (_TRAIN + " --num_train_steps=12 --profile_steps=5-13", "from 1 to 12 (training.num_train"),
    (_TRAIN + " --data_dir={t}/no-eval --mode=train_and_eval", "contains no held-out records"),
    (_RESUME + " --set=training.seed=7", "training.seed: 12345 -> 7"),
    (_RESUME + " --set=training.optimizer=muon", "optimizer: adamw -> muon"),
    (
        _RESUME + " --set=model.num_layers=3",
        "(model.num_layers: 2 -> 3): use the same settings; to start another",
    ),
    (_RESUME + " --set=data.seed=7", "from its weights, use --init_from "),
    (_RESUME + " --config={t}/clip.yaml", "rest of the run, use --set training.clip_norm=2.0"),
    (_RESUME + " --data_dir={t}/other", "was trained on other data"),
    (_RESUME + " --model_dir={w} --overwrite", "overlaps with --data_dir"),
    (_TRAIN + " --model_dir={w}/corpus.jsonl", "is a file: name a folder"),
    (_EVALUATE + " --step=99", "no checkpoint of step 99"),
    (_FILL, "use --text or --input"),
    (_FILL + " --text=何もない", "contains no [MASK]"),
    ("report --model_dir={t}/none --output={o}", "contains no run"),
    ("status", "--bucket or --project"),
    ("status --bucket=my-bucket", "--bucket my-bucket: no such folder"),
    ("status --bucket={w} --name=x", "no run 'x'"),
    (_EXPORT + " --step=99", "no checkpoint of step 99: choose one of 2, 4, 6"),
    (_EXPORT + " --license=MIT,BSD", "such as apache-2.0"),
    (_EXPORT + " --language=Japanese", "--language Japanese: use language codes, such as ja"),
    (_EXPORT + " --output_dir={w}/data", "of bigbird-ja (data set)"),
    (_EXPORT + " --data_dir={t}/other", "is not the data set that"),
    ("config {t}/no-effect.yaml", "no-effect.yaml: model.block_size=8 has no effect"),
    (_FILL + " --input={t}/huge.txt", "huge.txt has more than 1,048,576 bytes"),
    (_EVALUATE + " --model_dir={t}/a", "not the result of `export`"),
    ("fill-mask --model_dir={t}/a --text=[MASK]", "not the result of `export`"),
    (_MAKE + " --tokenizer={t}/damaged/ja.model", "not the model that"),
    # These commands must refuse to replace files that bigbird-ja did not write.
    ("report --model_dir={w}/model --output={t}/a/ja.model", _FOREIGN_FILE),
    ("preflight --output={t}/a/ja.model", _FOREIGN_FILE),
    ("sample --documents=3 --output={t}/huge.txt --overwrite", _FOREIGN_FILE),
    (_TOKENIZE + " --input={w}/corpus.jsonl --output_prefix={t}/a/ja", _FOREIGN_FILE),
    (_TOKENIZE + " --input={w}/corpus.jsonl --output_prefix={t}/b/ja --overwrite", _FOREIGN_FILE),
    (_TOKENIZE + " --input={w}/corpus.jsonl --output_prefix={t}/c/ja --overwrite", _FOREIGN_FILE),
    ("preflight --dump_hlo={t}/c", _FOREIGN_FOLDER),
    ("demo --work_dir={t}/c", _FOREIGN_FOLDER),
    (_EXPORT + " --output_dir={t}/c --overwrite", _FOREIGN_FOLDER),
    (_TRAIN + " --model_dir={t}/c --overwrite", _FOREIGN_FOLDER),
    # `launch` requires --config, and a limit of the cost or of the hours.
    *((start, "--config is required") for start in ("launch --dry_run", _RENT)),
    *((start + " --max_cost=5", "--config is required") for start in ("launch --dry_run", _RENT)),
    *(
        (f"{start} --config=tiny-cpu{grant}", "required: --max_cost or --max_hours")
        for start in ("launch --dry_run", _RENT)
        for grant in ("", " --price_per_hour=0")
    ),
    (_EIGHT + " --accelerator_type=v5litepod-8 --engine=estimator", "90807"),
    (_EIGHT + " --accelerator_type=v3-32", "the engine estimator supports one"),
    (
        _EIGHT + " --accelerator_type=v6e-2 --zones=us-east5-b",
        "has that size (use v6e-1, v6e-4, v6",
    ),
    (_EIGHT + " --accelerator_type=v7x-64", "docs/pods.md"),
    (_EIGHT + " --accelerator_type=v7x-8 --queued", "the Cloud TPU API does not rent v7x-8"),
    (_EIGHT + " --accelerator_type=v5e-8 --service=compute", "Compute Engine does not rent v5e-8"),
    (_EIGHT + " --accelerator_type=v6e-8 --service=compute --queued", "has no queue"),
    (_EIGHT + " --pricing=flex-start", "one of spot, on_demand"),
    (_EIGHT + " --name=Bad_Name", "lower-case"),
    (_EIGHT + " --data_dir=/tmp/data --bucket=gs://b", "with gs://b/data, or copy it"),
    (_EIGHT + " --bucket=/tmp/b", "can access only gs://"),
    (_EIGHT + " --spot", "rents spot TPUs without a flag"),
    (_EIGHT + " --price_per_hour=0 --max_cost=3", "has no effect with"),
    # `launch` refuses input with which the training on the rented machine would fail.
    (_EIGHT + " --accelerator_type=v5e-32", "by 32 cores x 1 micro-batches"),
    (_EIGHT + " --accelerator_type=v3-8 --set=tpu.num_cores=4", "set it to 8 for v3-8"),
    (
        _EIGHT + " --accelerator_type=v3-8 --set=model.attention_implementation=kernel",
        "attention_implementation=kernel requires",
    ),
    # `launch` stores these values, so only some characters are allowed. Since a refused value may
    # contain a secret, the message must not show it.
    (_EIGHT + " --data_dir=gs://b/d?access_token=ya29.secret", "may contain only letters"),
    (_EIGHT + " --vm_python=python3;secret", "may contain only letters"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory, small_run):
    """Return a folder that contains good/ (a small run and its inputs) and bad/ (bad files)."""
    world = tmp_path_factory.mktemp("world")
    runs.copy_inputs(small_run, world / "good")
    (world / "bad").mkdir()
    for name, text in _FILES.items():
        (world / "bad" / name).parent.mkdir(exist_ok=True)
        (world / "bad" / name).write_text(text)
    tokenizer = Path(small_run.tokenizer)
    damaged = shutil.copytree(tokenizer.parent, world / "bad/damaged") / tokenizer.name
    content = bytearray(damaged.read_bytes())
    content[-50] ^= 16
    damaged.write_bytes(content)
    config = (world / "good/model/config.yaml").read_text()
    clipped = config.replace("clip_norm: 1.0", "clip_norm: 2.0")
    (world / "bad/clip.yaml").write_text(clipped)
    facts = {"seq_length": 256, "vocab_size": 1200, "max_predictions_per_seq": 40}
    synthetic.write(world / "bad/no-eval", eval_counts=())
    synthetic.write(world / "bad/other", (40, 40, 40, 40), seed=1, **facts)
    return world


def state(folder):
    """Return the size and modification time of every file in a folder, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(("case", "words"), CASES, ids=[case[:80] for case, _ in CASES])
def test_bad_input_is_one_line_and_changes_nothing(case, words, world, tmp_path, capsys):
    places = {"w": world / "good", "t": world / "bad", "o": tmp_path / "out"}
    before = state(world)
    arguments = [word.format(**places) for word in case.split(" ")]
    assert cli.run_command_line([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert last.startswith("bigbird-ja: ") and words in last and "secret" not in last
    assert "Traceback" not in err and "INTERNAL" not in err
    is_early = case.startswith(("make-data", "pretrain", "launch")) and not case.startswith(_RESUME)
    if is_early and not case.endswith(_FOUND_LATER):
        assert err.splitlines() == [last], "the command printed settings before the error"
    assert json.loads(out)["reason"] == "bad_input"
    assert state(world) == before and state(tmp_path) == {}
