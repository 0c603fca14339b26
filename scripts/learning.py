"""What the learning benchmarks share: data, generated or real, and one training loop.

The step is the one that `pretrain` runs, as a graph, as there; there is no engine around it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from bigbird_ja.cli import main
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.model.params import POSITIONS, initial_parameters
from bigbird_ja.process import console
from bigbird_ja.settings.resolve import complete_config, preset_path, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import config_to_yaml, first_phase
from bigbird_ja.train import inputs
from bigbird_ja.train.step import initial_slots, train_step
from bigbird_ja.train.warm_start import repeated

Batch = dict[str, np.ndarray]
Run = TypeVar("Run")  # what a benchmark calls one of its runs


@dataclass(frozen=True)
class Task:
    """What is learnt: a preset with further settings, and the generated corpus for it."""

    name: str
    preset: str
    sets: tuple[str, ...]  # `section.key=value`
    sample: tuple[str, ...] = ()  # flags of `bigbird-ja sample`


TINY = Task("tiny preset", "tiny-cpu", (), ("--documents=1200",))
# The long-context probe's model, which learns to copy, at 1,024 tokens in 16 blocks.
COPYING = Task(
    "long-context probe",
    "probe-cpu",
    (
        "make_data.seq_length=1024",
        "make_data.max_predictions_per_seq=154",
        "model.block_size=64",
        "training.global_batch_size=4",
    ),
    ("--documents=4000", "--mean_length=5000", "--facts_per_1000_characters=20"),
)


def generated_data(work_dir: str, task: Task) -> str:
    """Makes the generated corpus, its tokenizer and its data set, once; returns DATA_DIR.

    Running again continues.
    """
    pathlib.Path(work_dir).mkdir(parents=True, exist_ok=True)
    corpus = str(pathlib.Path(work_dir) / "corpus.jsonl")
    bigbird_ja("sample", "--output", corpus, *task.sample)
    return data_of(work_dir, task, corpus)


def data_of(work_dir: str, task: Task, corpus: str) -> str:
    """Makes a corpus's tokenizer and data set, once; returns DATA_DIR. Running again continues."""
    root = pathlib.Path(work_dir)
    root.mkdir(parents=True, exist_ok=True)
    # A file, since commands refuse a --set that they do not use.
    settings, prefix, data = str(root / "task.yaml"), str(root / "tokenizer"), str(root / "data")
    config, _ = resolve_config(preset_path(task.preset), list(task.sets))
    pathlib.Path(settings).write_text(config_to_yaml(config), "utf-8")
    common = [f"--config={settings}", f"--input={corpus}"]
    bigbird_ja("tokenize", *common, f"--output_prefix={prefix}")
    bigbird_ja("make-data", *common, f"--tokenizer={prefix}.model", f"--output_dir={data}")
    return data


def bigbird_ja(*arguments: str) -> None:
    """Runs a command in this process; ends the script where it fails."""
    with contextlib.redirect_stdout(io.StringIO()):
        status = main.run_command_line(list(arguments))
    if status:
        raise SystemExit(f"bigbird-ja {arguments[0]} ended with {status}")


def config_for(data_dir: str, task: Task, *sets: str) -> Config:
    """The task's config with further settings, completed by the data set."""
    config, _ = resolve_config(preset_path(task.preset), [*task.sets, *sets])
    return complete_config(config, (), manifest_lib.load(data_dir).as_settings())


def training_batches(config: Config, data_dir: str, **which: Any) -> Iterator[Batch]:
    """The batches that `pretrain` would see, from step 0 on; `which` as of `reading.batches`."""
    batches = inputs.batches(config, manifest_lib.load(data_dir), data_dir, **which)
    return batches.as_numpy_iterator()


def one_core_each(processes: int | None = None) -> concurrent.futures.ProcessPoolExecutor:
    """A pool of as many processes as cores, or as said: a model this small does not fill two."""
    context = multiprocessing.get_context("spawn")
    workers = processes or os.cpu_count()
    return concurrent.futures.ProcessPoolExecutor(workers, context, _use_one_core)


def arguments(
    purpose: str, name: str, seeds: int, steps: int, parent: argparse.ArgumentParser | None = None
) -> argparse.ArgumentParser:
    """The flags of a learning benchmark whose picture is docs/images/NAME.png.

    Args:
        parent: further flags.
    """
    parser = argparse.ArgumentParser(description=purpose, parents=[parent] if parent else [])
    parser.add_argument("--work_dir", default=f"out/{name}")
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--plot", default=f"docs/images/{name}.png")
    parser.add_argument("--redraw", action="store_true", help="train nothing: draw what was kept")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one per core)")
    return parser


def learn(
    options: argparse.Namespace, work: Callable[[], dict[str, tuple[Callable[..., Any], tuple]]]
) -> dict[str, Any]:
    """Runs what is to be learnt, each on one core: a model this small does not fill two.

    Each run is kept in WORK_DIR/runs, so that a benchmark that was stopped goes on; what all of
    them return is kept as JSON beside the picture, which can be drawn again from it.

    Args:
        options: as `arguments` declares them.
        work: makes the data and says, by the name of a run, a function and its arguments.

    Returns:
        What each run returned, which must be JSON, by its name and in the order of `work`.
    """
    kept = pathlib.Path(options.plot).with_suffix(".json")
    if options.redraw:
        return json.loads(kept.read_text("utf-8"))
    runs = work()
    found = run_kept(
        {
            name: (_file_of(options.work_dir, call), make, call)
            for name, (make, call) in runs.items()
        },
        options.jobs,
        lambda name, _, left: console.log(f"{name}: done, {left} to come"),
    )
    kept.write_text(json.dumps(found) + "\n", "utf-8")
    return found


def run_kept(
    runs: Mapping[Run, tuple[pathlib.Path, Callable[..., Any], tuple]],
    processes: int | None,
    told: Callable[[Run, Any, int], None],
) -> dict[Run, Any]:
    """Runs what has no file yet, each on one core, and keeps what it returns, which must be JSON.

    Args:
        runs: file, function and its arguments of each.
        processes: as of `one_core_each`.
        told: gets each run as it ends, what it returned, and how many are to come.

    Returns:
        What each run returned, now or earlier, in the order of `runs`.
    """
    found = {
        run: json.loads(file.read_text("utf-8"))
        for run, (file, _, _) in runs.items()
        if file.exists()
    }
    with one_core_each(processes) as pool:
        pending = {pool.submit(_keep, *runs[run]): run for run in runs if run not in found}
        try:
            for done in concurrent.futures.as_completed(pending):
                run = pending[done]
                found[run] = done.result()
                told(run, found[run], len(runs) - len(found))
        except BaseException:  # a run that fails is to be heard of before the others are through
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {run: found[run] for run in runs}


def _keep(file: pathlib.Path, make: Callable[..., Any], call: tuple) -> Any:
    found = make(*call)
    file.parent.mkdir(exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(found), "utf-8")
    beside.replace(file)
    return found


def _file_of(work_dir: str, call: tuple) -> pathlib.Path:
    """Where a run is kept: other arguments, another file."""
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, call[1:])).lower())
    digest = hashlib.sha256(repr(call).encode()).hexdigest()
    return pathlib.Path(work_dir) / "runs" / f"{words[:60]}-{digest[:8]}.json"


def rounded(losses: Sequence[float]) -> list[float]:
    """Losses as they are kept: to 1e-4, which no picture and no table shows."""
    return [round(loss, 4) for loss in losses]


def _use_one_core() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def smooth(values: Sequence[float], width: int) -> np.ndarray:
    """Running mean over `width` steps, or over all where there are fewer."""
    width = min(width, len(values))
    return np.convolve(values, np.ones(width) / width, mode="valid")


State = tuple[dict[str, tf.Variable], dict[str, dict[str, tf.Variable]]]  # parameters, slots


def train(
    config: Config,
    batches: Iterator[Batch],
    each_step: Callable[[int, dict[str, float]], None],
) -> dict[str, tf.Variable]:
    """Trains for `training.num_train_steps` and returns the parameters.

    Args:
        config: completed; its training.seed draws the initial weights and dropout.
        batches: one per step.
        each_step: told the step (from 1) and its metrics.
    """
    state = new_state(config)
    train_steps(config, state, batches, range(config.training.num_train_steps), each_step)
    return state[0]


def train_in_phases(
    config: Config, data_dir: str, each_step: Callable[[int, dict[str, float]], None]
) -> dict[str, tf.Variable]:
    """As `train`, on the data set's own batches, and on short sequences first where the config has
    `training.first_seq_length`."""
    phase, change = first_phase(config), config.training.first_seq_length_steps or 0
    state, steps = new_state(config), config.training.num_train_steps
    if phase is not None:
        batches = training_batches(config, data_dir, in_first_phase=True)
        train_steps(phase, state, batches, range(change), each_step)
        for table in (values[POSITIONS] for values in (state[0], *state[1].values())):
            table.assign(repeated(table.numpy()[: phase.make_data.seq_length], int(table.shape[0])))
    batches = training_batches(config, data_dir, start_step=change)
    train_steps(config, state, batches, range(change, steps), each_step)
    return state[0]


def new_state(config: Config) -> State:
    """Parameters and slots before the first step."""
    params = {
        name: tf.Variable(value)
        for name, value in initial_parameters(config, config.training.seed).items()
    }
    slots = {
        slot: {name: tf.Variable(value) for name, value in values.items()}
        for slot, values in initial_slots(params).items()
    }
    return params, slots


def train_steps(
    config: Config,
    state: State,
    batches: Iterator[Batch],
    steps: range,
    each_step: Callable[[int, dict[str, float]], None],
) -> None:
    """Trains for some steps, in place."""
    params, slots = state

    # Not compiled by XLA: on a CPU it runs what is not a product on one core.
    @tf.function(reduce_retracing=True)
    def step(global_step: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        new_params, new_slots, metrics = train_step(config, params, slots, global_step, batch)
        for name, value in new_params.items():
            params[name].assign(value)
            for slot in slots:
                slots[slot][name].assign(new_slots[slot][name])
        return metrics

    for number in steps:
        batch = {name: tf.constant(value) for name, value in next(batches).items()}
        metrics = step(tf.constant(number, tf.int64), batch)
        each_step(number + 1, {name: float(value) for name, value in metrics.items()})
